# SPDX-License-Identifier: Apache-2.0
"""Messages of DeepSpeed's launcher, the pdsh and ssh that it runs, `deepspeed.comm`, and elastic training.

From DeepSpeed 0.14.5 to 0.19.8 (elastic training: up to 0.18.9), and from pdsh 2.35.
"""

from __future__ import annotations

MESSAGES = r"""
LG060 Using hostfile at (?P<hostfile>\S+) but host=(?P<host>\S+) was not reachable via ssh
    title: the launcher could not log in to the first host of the hostfile by ssh without a password
    change: try it by hand from the launching host: `ssh -o PasswordAuthentication=no HOST hostname` must print a name.
        Set up keys (`ssh-keygen`, `ssh-copy-id HOST`), also from a host to itself; accept the host key (`ssh-keyscan`);
        in a container, start sshd and give its port (`--ssh_port`); use a host name that resolves. Training on one
        host needs no hostfile: remove it. With `--no_ssh --node_rank N` on every host, the launcher needs no ssh
LG060 * ssh\W+-o\W+PasswordAuthentication=no\b.* returned non-zero exit status
    title: the launcher could not log in to the first host of the hostfile by ssh without a password
    change: try `ssh -o PasswordAuthentication=no HOST hostname` by hand from the launching host, and set up keys
        (`ssh-copy-id HOST`); training on one host needs no hostfile: remove it
LG060 ssh: Could not resolve hostname (?P<host>[^:\s]+)
    title: a host of the hostfile does not resolve
    change: write an address into the hostfile, or a name that the launching host resolves (`getent hosts NAME`), or add
        the name to `/etc/hosts` or `~/.ssh/config` there, also in the container; to train on this machine alone, write
        `localhost`, or pass no hostfile
LG060 ssh: connect to host (?P<host>\S+) port (?P<port>\d+): Connection refused
    title: a host is reachable, but no ssh server listens on that port
    change: start sshd on that host, or in its container, and give the port with `--ssh_port` or in `~/.ssh/config`
LG060 ssh: connect to host (?P<host>\S+) port (?P<port>\d+):
    title: a host does not answer ssh
    change: check that it is up, that the address is right (`getent hosts NAME`), and that no firewall blocks the port;
        `ssh HOST hostname` by hand shows whether ssh works
LG060 Permission denied \((?:publickey|password|gssapi|keyboard|hostbased)[^)]*\)
    title: a host refuses the ssh key of the user who launches
    change: run `ssh-copy-id HOST` on the launching host, also for that host itself; a container needs the keys in its
        own `~/.ssh` (mode 700, keys 600), and the right user (`User` in `~/.ssh/config`); keys with a passphrase need
        an agent
LG060 Host key verification failed
    title: ssh does not know the host key of a host and cannot prompt for it
    change: run `ssh-keyscan HOST >> ~/.ssh/known_hosts` on the launching host, with the names as the hostfile has them
LG060 REMOTE HOST IDENTIFICATION HAS CHANGED
    title: the ssh host key of a host has changed
    change: if the host or its container was rebuilt, run `ssh-keygen -R HOST`, then `ssh-keyscan HOST >>
        ~/.ssh/known_hosts`; otherwise find out which machine answers at that address
LG060 (?:ssh|kex)_exchange_identification:
    title: the ssh server of a host closed the connection during the handshake
    change: raise `MaxStartups` in that host's sshd_config (for many connections at once), check `/etc/hosts.deny`, and
        check that an ssh server listens on the port
LG060 * ssh[^\w\n]{1,9}(?:-p[^\w\n]{1,9}\d{1,5}[^\w\n]{1,9})?(?P<host>\w[\w.-]{0,90})[^\w\n]{1,9}hostname\W{1,9}-?I\W{1,9}returned non-zero exit status
    title: the launcher could not get the address of the first host of the hostfile
    change: make sure that `ssh HOST hostname -I` by hand prints addresses, or pass `--master_addr`
LG061 invalid literal for int\(\) with base 10: '(?P<slot>[^']*)' ::! launcher/(?:runner|launch)
    title: `--include`, `--exclude` or CUDA_VISIBLE_DEVICES has an empty slot, or one that is not a number
    change: write slots as numbers after the colon (`--include "HOST:0,1"`), or leave the colon out for the whole host;
        without a hostfile the launcher builds `--include` from CUDA_VISIBLE_DEVICES: unset it, or write plain numbers
        (`0,1`) without a trailing comma
LG060 Received disconnect from \S+ port \d+:\d+: Too many authentication failures
    title: ssh offered more keys than the host accepts
    change: name the one key for that host in `~/.ssh/config` (`IdentityFile`, `IdentitiesOnly yes`)
LG060 * Connection closed by (?P<host>\S+) port \d+$
    title: the ssh server of a host closed the connection
    change: read the sshd log on that host: the user or the address is not allowed there, or it has too many connections
        at once (`MaxStartups`)
LG150 mpirun has detected an attempt to run as root
    title: Open MPI refuses to start as root
    change: pass `--launcher_args "--allow-run-as-root"`, or launch as another user
LG061 There are not enough slots available in the system
    title: Open MPI has fewer slots than ranks to start
    change: raise `slots=` in the hostfile to the number of GPUs of each host, or start fewer ranks
LG060 ORTE was unable to reliably start one or more daemons
    title: Open MPI could not start its daemon on a host
    change: make sure that `ssh HOST hostname` works without a password from the launching host, and install Open MPI on
        that host under the same path, in the PATH and LD_LIBRARY_PATH of non-interactive shells
LG064 * could not access or execute an executable
    title: Open MPI did not find the program on a host
    change: install the same Python and the same folders on every host under the same path
LG063 export: `(?P<entry>[^']*)': not a valid identifier
    title: the launcher exports a variable with a name or a value that the shell rejects
    change: write one `NAME=VALUE` per line in `.deepspeed_env`, without spaces around `=`, and quote values with
        spaces; unset variables with odd names in the launching shell
LG151 * launch\.py: error: the following arguments are required: training_script
    title: the command that the launcher sent to a host does not contain the script, most often because the launcher
        found no address of the first host
    change: pass `--master_addr ADDRESS`: the line `Using IP address of ... for node` shows whether one was found (`ssh
        HOST hostname -I` must print it); also escape script arguments that have quotes or special characters
LG065 error: the following arguments are required: training_script
    title: the launcher's command ends before the script
    change: check the backslashes at the line ends of the shell script: a space after one, or an empty line, ends the
        command there, and the shell runs the next line as a separate command; put the script after all options of the
        launcher
LG065 : (?P<option>--?[A-Za-z][\w-]*): (?:command )?not found
    title: the shell ran an option as a command, because the line before it does not end in a backslash
    change: remove the space after the backslash, or the empty line or comment inside the command
LG013 Duplicate GPU detected ?: ?rank (?P<rank>\d+) and rank \d+ both on
    title: two ranks use the same GPU
    change: let every rank choose its own (`torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before anything else
        on the GPU), give all ranks of a host the same CUDA_VISIBLE_DEVICES with all their GPUs, start no more ranks
        than GPUs, and name each machine once in the hostfile
LG012 ProcessGroupNCCL is only supported with GPUs, no GPUs found
    title: a rank sees no GPU
    change: compare `nvidia-smi` and `python -c "import torch; print(torch.cuda.is_available())"` in a shell on the host
        with what the rank prints: the launcher passes on only variables that begin with NCCL, PYTHON, MV2, UCX or
        MLFLOW; others, such as LD_LIBRARY_PATH, go into `.deepspeed_env`; a container needs `--gpus all` (Singularity
        `--nv`)
LG062 No such file or directory: 'ssh'
    title: ssh is not installed on the launching host
    change: install an ssh client (`openssh-client`) there, also in the container, or start every host by hand with
        `--no_ssh --node_rank N --master_addr ADDRESS`; training on one host needs no hostfile: remove it
LG051 * ssh: .*Bad owner or permissions on (?P<path>\S+)
    title: ssh refuses its configuration or key, because other users can write to it
    change: run `chmod 600 ~/.ssh/config ~/.ssh/id_*` and `chmod 700 ~/.ssh`, and make the job's user their owner
LG060 * Load key "(?P<path>[^"]+)":
    title: ssh cannot read the private key
    change: give the job's user a readable key without a passphrase, with mode 600, and name it in `~/.ssh/config`
LG060 * WARNING: UNPROTECTED PRIVATE KEY FILE
    title: ssh ignores the private key, because other users can read it
    change: `chmod 600` the key on the launching host; copy a key from a mounted secret first
LG060 ^pdsh@\S+: gethostbyname\("(?P<host>[^"]+)"\) failed
    title: a host of the hostfile does not resolve
    change: write addresses into the hostfile, or names that the launching host resolves (`getent hosts NAME`)
LG152 No such rcmd module "(?P<name>\w+)"
LG152 ^pdsh@\S+: no modules found
LG152 ^pdsh@\S+: Can't load \S+
LG152 ^pdsh@\S+: skipping insecure module "(?P<path>[^"]+)"
    title: pdsh skips its module, because another user owns it or can write to it
    change: make root (or the user who runs pdsh) the owner of pdsh's module folder and remove write permission for
        others (`chmod go-w`), or use `--launcher openmpi` or `slurm`
LG152 ^pdsh@\S+: \S+: rcmd: socket:
    title: pdsh used rsh instead of ssh
LG060 * ^pdsh@\S+: (?P<host>\S+): connect:
    title: pdsh could not connect to a host
LG150 ^pdsh@\S+: Invalid (?:environment variable|fanout)
    title: a pdsh variable or option has an invalid value
    change: unset the variable that the message names (`FANOUT`, `PDSH_CONNECT_TIMEOUT`, `PDSH_COMMAND_TIMEOUT`), or
        correct `--launcher_args`
LG064 * ^pdsh@\S+: (?P<host>\S+): ssh exited with exit code 127
    title: the shell on a host did not find the command
    change: install the same Python and the same folders on every host under the same path: on each host the launcher
        starts Python by its path on the launching host (`sys.executable`); the line above names the command
LG051 * ^pdsh@\S+: (?P<host>\S+): ssh exited with exit code 126
    title: the shell on a host has no permission to execute the command
    change: make the file executable (`chmod +x`), on a file system that is not mounted `noexec`
LG060 * ^pdsh@\S+: (?P<host>\S+): ssh exited with exit code 255
    title: the ssh connection to a host failed or dropped
    change: read the ssh line above, which says why (key, host key, name, port, timeout); by hand, `ssh HOST hostname`
        must work without a password; if the job was already running, the host went down or the connection dropped:
        check that host, and set `ServerAliveInterval 30` in `~/.ssh/config`
LG062 * bash: (?:line \d+: )?(?P<name>pdsh|mpirun|srun|ompi_info|numactl): command not found
LG062 launcher '(?P<name>pdsh)' not installed
    title: pdsh is not installed on the launching host
    change: install `pdsh` there (with its ssh module), also in the container, or name another back end with
        `--launcher` (`openmpi`, `slurm`); `--no_ssh --node_rank N` on every host needs neither
LG062 launcher '(?P<name>\w+)' not installed
    change: install what the back end looks for on the launching host (`openmpi`: `ompi_info`, `slurm`: `sinfo`,
        `mvapich`: `mpiname`, `mpich` and `impi`: `mpirun`), or name another with `--launcher`
LG062 NotImplementedError: Unknown launcher (?P<name>\S+)
    title: `--launcher` names a back end that DeepSpeed does not have
    change: use `pdsh`, `openmpi`, `mpich`, `impi`, `mvapich` or `slurm`
LG061 Hostfile contains multiple entries for (?P<host>\S+), unable to proceed
    title: the hostfile names a host twice
    change: write each host once, with all its slots
LG061 Hostfile contains a bad entry:
    title: a line of the hostfile is not `NAME slots=N`
    change: write one host per line as `NAME slots=N`, without commas, quotes or a port; lines that begin with `#` are
        comments
LG061 Hostfile is empty or not formatted correctly
    title: the hostfile names no host
    change: write one host per line as `NAME slots=N`, or pass no `--hostfile` to train on this host alone
LG061 Hostname '(?P<host>[^']*)' not found in hostfile
    title: `--include` or `--exclude` names a host that is not in the hostfile
    change: write the name as the hostfile has it (`--include "HOST:0,1@HOST2"`); without a hostfile the only host is
        `localhost`
LG061 No slot '(?P<slot>[^']*)' specified on host
    title: `--include` or `--exclude` names a device that the hostfile does not give to this host
    change: raise `slots=` of that host, or name devices from 0 to slots - 1; without a hostfile there are as many slots
        as devices
LG061 include_str and exclude_str are mutually exclusive
    title: the launcher got both `--include` and `--exclude`
    change: pass one of the two
LG061 Cannot specify num_nodes/gpus with include/exclude
    title: the launcher got `--num_nodes` or `--num_gpus` together with `--include` or `--exclude`
    change: pass one of the two; with CUDA_VISIBLE_DEVICES set and no hostfile the launcher sets `--include` by itself,
        so unset that variable or leave out `--num_gpus`
LG012 Unable to proceed, no GPU resources available
    title: the launcher sees no accelerator on this host
    change: check `nvidia-smi`, CUDA_VISIBLE_DEVICES, the container's `--gpus all`, and that this torch is a build for
        the device; on CPUs set `DS_ACCELERATOR=cpu`
LG061 Num nodes is >1 but no extra nodes available via hostfile
    title: `--num_nodes` asks for several hosts, and the launcher found no hostfile
    change: pass the path with `--hostfile` (the default is /job/hostfile), with one `NAME slots=N` per line
LG061 Launching training without ssh, but --node_rank is not set correctly
    title: `--no_ssh` was passed without a valid `--node_rank`
    change: start the launcher on every host with `--node_rank` from 0 to hosts - 1, in the order of the hostfile
LG151 Unable to detect suitable master address via .hostname -I
LG150 (?P<name>\w+) backend does not support worker include/exclusion
    title: this back end does not support `--include` and `--exclude`
    change: write a hostfile with the hosts that you want instead of `--include` and `--exclude`, or use `--launcher
        pdsh`
LG150 (?P<name>\w+) backend does not support limiting num nodes/gpus
    title: this back end does not support `--num_nodes` and `--num_gpus`
    change: write a hostfile with the hosts and slots that you want instead of `--num_nodes` and `--num_gpus`, or use
        `--launcher pdsh`
HO007 (?:MPICH|Intel MPI|mvapich) requires same number of devices per node
    title: this back end needs the same number of slots on every host
    change: give every host the same `slots=` in the hostfile, or use `--launcher pdsh`
HO007 slurm backend needs the same slot count on every host
    title: the slurm back end needs the same number of slots on every host
    change: give every host the same `slots=` in the hostfile, or use `--launcher pdsh`
LG061 slurm backend cannot select specific device ids
    title: the slurm back end cannot choose devices
    change: select whole hosts, or the first N slots of each; `--launcher pdsh` can choose devices
LG150 slurm backend does not support remapping visible devices
    change: leave out `--detect_nvlink_pairs`, or use `--launcher pdsh`
LG063 * not enough values to unpack \(expected 2, got 1\) ::! launcher/runner
LG150 world_info can not be None
    title: `deepspeed.launcher.launch` was started by hand, without `--world_info`
    change: start the job with `deepspeed SCRIPT`, which passes that option
LG150 pid file exists but shouldn't
    title: the pid file of an earlier launch with `--save_pid` still exists
    change: remove the stale `*.deepspeed` file in `/tmp`, or leave out `--save_pid`
LG150 should not be a file, it should be a directory
    change: give `--enable_each_rank_log` a folder
LG051 unable to create directory \S+ for each rank log
    change: give `--enable_each_rank_log` a folder that the job's user can create on every host; the line above says why
        that failed
LG150 Don't use both the '--no_python' flag and the '--module' flag
    change: `--module` runs a Python module, `--no_python` a program: pass one of them
LG150 Environment variable KMP_AFFINITY conflicts with numactl
    title: `--bind_cores_to_rank` does not work while KMP_AFFINITY is set
    change: `unset KMP_AFFINITY` before the launch, or leave out `--bind_cores_to_rank`
HO029 At least one core needs to be assigned to each rank
    title: there are fewer cores than ranks to bind to them
    change: give `--bind_core_list` at least one core for each rank, or leave out `--bind_cores_to_rank`
HO029 Bad range: '[^']*',
    title: `--bind_core_list` is not a list of cores
    change: write numbers and ascending ranges that do not overlap, such as `0-7,16-23`
LG154 (?:local_)?rank number doesn't match!
    title: the variables of two MPI launchers name different ranks
LG154 EnvironmentError: rank number is not in current env
    title: the rank's MPI launcher set none of the variables that DeepSpeed reads
    change: with `--launcher mpich`, `mpirun` must be MPICH's (Hydra or PALS), which sets PMI_RANK and MPI_LOCALRANKID
        or PALS_LOCAL_RANKID; for Open MPI use `--launcher openmpi`
LG154 MPI environment variables are not set
    title: the process was not started by an MPI launcher
    change: start it with `mpirun` or `srun`, or use `deepspeed` or `torchrun` instead of `--launcher mpich` or `impi`
LG154 MPI (?:rank|world size) \S+ does not match torch (?:rank|world size)
    title: torch.distributed has a different rank or world size than MPI
LG064 * No module named 'mpi4py'
    title: DeepSpeed fell back to MPI discovery, because the variables of a launcher are missing
    change: start the script with `deepspeed` or `torchrun` (they set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
        MASTER_PORT); only a job under `mpirun` needs `mpi4py`
LG153 DeepSpeed backend not set, please initialize it using init_process_group
LG153 Distributed backend is not initialized\. Please set dist_init_required
    change: leave out `dist_init_required=False`, or call `deepspeed.init_distributed()` before `deepspeed.initialize`
LG153 \b(?:has_all_reduce_coalesced|has_coalescing_manager) is not yet defined
LG153 torch\.distributed must be initialized before SDMA allgather
    title: an SDMA allgather ran before torch.distributed was initialized
LG096 op must be deepspeed\.comm\.isend or deepspeed\.comm\.irecv
    title: a batched operation got a function other than `deepspeed.comm.isend` or `irecv`
    change: build the list for `batch_isend_irecv` from `deepspeed.comm`'s own `isend` and `irecv`
LG096 * ^AssertionError:?$ ::! deepspeed/comm/torch\.py all_(?:to_all|gather_coalesced)
    title: a collective got lists of different lengths
    change: give it as many output tensors as input tensors
LG096 * ^AssertionError$ ::! deepspeed/comm/comm\.py init_distributed
    title: `init_distributed` got a `timeout` that is not a `timedelta`
    change: pass `timeout=datetime.timedelta(minutes=N)`
LG151 * ^AssertionError$ ::! deepspeed/launcher/runner\.py main
LG089 Current torch version does not have (?:all_reduce_coalesced|device mesh) ?api
    title: this torch is too old for a collective that the configuration needs
    change: install torch 2.2 or newer, or leave out the sequence-parallel mesh and coalesced communication
LG089 Torch version must be 2\.5 or higher to use symmetric memory
    title: symmetric memory needs torch 2.5
    change: install torch 2.5 or newer, or leave out the feature that asks for symmetric memory
LG088 Backend \S+ does not support symmetric memory initialization
    change: use NCCL, or leave out the feature that asks for symmetric memory
LG150 Max and Min nodes should be positive
    title: elastic training needs `--min_elastic_nodes` and `--max_elastic_nodes` above 0
    change: pass both, or leave out `--elastic_training`
LG150 Master Addr is required when elastic training is enabled
    change: pass `--master_addr`, or leave out `--elastic_training`
LG150 --no_local_rank argument is not supported in Elastic training
    change: leave out `--no_local_rank`, or `--elastic_training`
LG150 num_nodes \S+ is not in MIN:MAX format
    change: write `--num_nodes MIN:MAX` with `--elastic_training`
LG150 MIN:MAX format is only supported in elastic training
    change: write one number after `--num_nodes`, or add `--elastic_training`
LG087 Elasticity (?:expected|min|config|is disabled|V|v|time)
LG087 (?:Model-Parallel size|Number of GPUs per node) cannot be less than 1
LG087 All micro batches must be less than\s+or equal to max_acceptable_batch_size
    change: raise `elasticity.max_train_batch_size`, or remove the sizes above it from `elasticity.micro_batch_sizes`
LG087 '?elasticity'? is missing from config json
    change: add the `elasticity` block, or leave out `--elastic_training`
LG087 Attempting to run elasticity version
    change: set `elasticity.version` to 0.1 or 0.2
LG087 Unable to (?:run elasticity on target deepspeed version|find elastic logic for version)
LG087 Unable to find divisible micro batch size world_size
    change: choose the number of ranks, or list a micro-batch size, so that the product of the two divides the batch
        size in the message
LG087 World size \(\d+\) is not valid with the current list of valid GPU counts
    change: launch with one of the world sizes that the message lists, or change `elasticity.micro_batch_sizes`
SP006 Expected ds_config to be a dictionary but received
    title: the configuration of elastic training is not a dict
    change: pass `ds_config` as a dict to `compute_elastic_config`
LG074 Worker group in \w+ state
    title: a worker of the elastic agent failed
    change: read the worker's error, which is further up or in the worker's own log
LG018 * exits with return code = (?:-11|139)\b
LG005 * exits with return code = (?:-7|135)\b
LG074 * exits with return code = (?:-6|134)\b
    title: a rank aborted (SIGABRT): native code threw an exception, or NCCL's watchdog ended the process
    change: read what the rank printed just above: `terminate called after throwing`, a failed assertion, a timeout of a
        collective, `free(): invalid pointer`; it may also be in the log of a rank or host that is not shown here
LG074 * exits with return code = (?:-10|-8|136)\b
    title: a signal ended a rank: SIGFPE (8, division by zero), or signal 10 (SIGUSR1 on Linux)
    change: handle SIGUSR1, which the scheduler sends as a warning before preemption or the time limit, or do not
        request it; for SIGFPE rebuild ops that were compiled on another machine (remove TORCH_EXTENSIONS_DIR), and
        check the hardware
LG074 * exits with return code = 2$
    title: Python did not start the script, or the script refused its arguments
    change: check the path of the script on every host, and its options (the line above says which of the two it was);
        the launcher adds `--local_rank=N` unless you pass `--no_local_rank`
LG064 * exits with return code = 127$
    title: the launcher started a program that does not exist
    change: check the path of the Python or of the program after `--no_python`, on every host
LG051 * exits with return code = 126$
    title: the launcher started a file that is not executable
    change: make it executable (`chmod +x`) and give it a valid `#!` line, on a file system without `noexec`
LG074 * exits with return code = 1$
    title: a rank ended with an exception that is not in this log
    change: look further up in this log for its traceback, and in the logs of the other ranks and hosts; run with
        `--enable_each_rank_log FOLDER`, which writes a file for each rank
"""
