// SPDX-License-Identifier: Apache-2.0
// An `ssh` for thousands of made-up hosts: passes its arguments and its three pipes to the server of
// tests/support/made_up_hosts.py, and ends with the exit code that the server sends. A millisecond, half a megabyte.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const char *path = getenv("MADE_UP_HOSTS");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || strlen(path) >= sizeof address.sun_path) return 2;
    strcpy(address.sun_path, path);
    int sock = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(sock, (struct sockaddr *)&address, sizeof address)) return 2;
    uint32_t size = 0;
    for (int i = 1; i < argc; i++) size += strlen(argv[i]) + 1;
    struct iovec head = {&size, sizeof size};
    char control[CMSG_SPACE(3 * sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &head, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(3 * sizeof(int));
    memcpy(CMSG_DATA(header), (int[]){0, 1, 2}, 3 * sizeof(int));
    if (sendmsg(sock, &message, 0) < 0) return 2;
    for (int i = 1; i < argc; i++)
        for (size_t left = strlen(argv[i]) + 1, done = 0; done < left;) {
            ssize_t n = write(sock, argv[i] + done, left - done);
            if (n < 0) return 2;
            done += n;
        }
    close(0), close(1), close(2);
    unsigned char code;
    return read(sock, &code, 1) == 1 ? code : 255;
}
