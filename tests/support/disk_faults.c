// SPDX-License-Identifier: Apache-2.0
// A disk that fails on purpose, for LD_PRELOAD. DISK_FAULT="OP GLOB NTH ACTION SECONDS":
// OP      write, fsync, rename (by the new name), renamed (after it), open (for writing), mkdir, unlink; * for all
// NTH     the first call of this process on a matching path that is hit
// ACTION  an errno (EIO ENOSPC EROFS), SHORT (half a write, then ENOSPC), KILL, SLOW (0.2 s), LOG (to DISK_FAULT_LOG)
// SECONDS how long later calls are hit, too; 0: only that one
// The variable is read at every call, so that a forked process can set its own.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char text[1024], op_wanted[16], glob[768], action[16];
static int nth, calls;
static double seconds, hit_at;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

// 1: fail with errno set; 2: write half.
static int fault(const char *op, const char *path) {
    const char *value = getenv("DISK_FAULT");
    if (!value || !path) return 0;
    if (strncmp(value, text, sizeof text - 1)) {
        strncpy(text, value, sizeof text - 1);
        calls = 0, hit_at = 0;
        if (sscanf(text, "%15s %767s %d %15s %lf", op_wanted, glob, &nth, action, &seconds) != 5) abort();
    }
    if ((strcmp(op_wanted, "*") && strcmp(op_wanted, op)) || fnmatch(glob, path, 0)) return 0;
    int first = __sync_add_and_fetch(&calls, 1) == nth;
    if (first) hit_at = now();
    if (!first && (hit_at == 0 || now() - hit_at >= seconds)) return 0;
    if (!strcmp(action, "KILL")) syscall(SYS_kill, getpid(), SIGKILL);
    if (!strcmp(action, "SLOW")) return usleep(200000), 0;
    if (!strcmp(action, "LOG")) {
        char line[1024];
        int size = snprintf(line, sizeof line, "%d %s %s\n", getpid(), op, path);
        int file = syscall(SYS_openat, AT_FDCWD, getenv("DISK_FAULT_LOG"), O_WRONLY | O_APPEND | O_CREAT, 0600);
        syscall(SYS_write, file, line, size);
        syscall(SYS_close, file);
        return 0;
    }
    if (!strcmp(action, "SHORT") && first && !strcmp(op, "write")) return 2;
    errno = !strcmp(action, "EIO") ? EIO : !strcmp(action, "EROFS") ? EROFS : ENOSPC;
    return 1;
}

static const char *path_of(int file, char *buffer) {
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, buffer, 767);
    return size < 0 ? NULL : (buffer[size] = 0, buffer);
}

#define REAL(result, name, ...) result (*real)(__VA_ARGS__) = dlsym(RTLD_NEXT, name)

ssize_t write(int file, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    char path[768];
    int kind = getenv("DISK_FAULT") ? fault("write", path_of(file, path)) : 0;
    return kind == 1 ? -1 : real(file, data, kind == 2 ? size / 2 : size);
}

int fsync(int file) {
    REAL(int, "fsync", int);
    char path[768];
    return fault("fsync", path_of(file, path)) ? -1 : real(file);
}

int rename(const char *old, const char *new) {
    REAL(int, "rename", const char *, const char *);
    if (fault("rename", new)) return -1;
    int result = real(old, new);
    return fault("renamed", new) ? -1 : result;
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    return fault("mkdir", path) ? -1 : real(path, mode);
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    return fault("unlink", path) ? -1 : real(path);
}

#define OPEN(name)                                                                \
    int name(const char *path, int flags, ...) {                                  \
        REAL(int, #name, const char *, int, ...);                                 \
        va_list rest;                                                             \
        va_start(rest, flags);                                                    \
        mode_t mode = va_arg(rest, mode_t);                                       \
        va_end(rest);                                                             \
        if ((flags & (O_WRONLY | O_RDWR)) && fault("open", path)) return -1;      \
        return real(path, flags, mode);                                           \
    }
OPEN(open)
OPEN(open64)
