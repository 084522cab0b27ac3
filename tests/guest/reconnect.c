/* Attaches /dev/nbd0 to an export with several connections through the kernel's netlink interface, and gives the kernel a
 * new socket for each one that is disconnected: what nbd-client 3.24 cannot do.
 *
 *     reconnect HOST PORT EXPORT CONNECTIONS
 *
 * Requests wait while there is no connection, for at most DEAD_SECONDS. Built statically for the guest of test_guest.py. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <linux/genetlink.h>
#include <linux/nbd-netlink.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 16, DEAD_SECONDS = 120, TIMEOUT_SECONDS = 5, BLOCK_BYTES = 512, RETRY_US = 200000 };

struct message {
    struct nlmsghdr header;
    struct genlmsghdr generic;
    char attributes[1024];
};

static uint64_t size;
static uint16_t flags;

static void stop(const char *what) {
    perror(what);
    exit(1);
}

static int all(int socket, void *data, size_t length, int writes) {
    for (size_t done = 0; done < length;) {
        ssize_t n = writes ? write(socket, (char *)data + done, length - done) : read(socket, (char *)data + done, length - done);
        if (n <= 0)
            return -1;
        done += n;
    }
    return 0;
}

/* A socket in the transmission phase, or -1 if the server is not there. */
static int attach(const char *host, int port, const char *name) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &address.sin_addr);
    int found = socket(AF_INET, SOCK_STREAM, 0);
    char greeting[18], option[16 + 256] = "\0\0\0\3IHAVEOPT\0\0\0\1";
    uint32_t length = htonl(strlen(name));
    memcpy(option + 16, &length, 4);
    memcpy(option + 20, name, strlen(name));
    if (connect(found, (struct sockaddr *)&address, sizeof address) || all(found, greeting, sizeof greeting, 0) ||
        all(found, option, 20 + strlen(name), 1) || all(found, &size, 8, 0) || all(found, &flags, 2, 0)) {
        close(found);
        return -1;
    }
    return found;
}

static struct nlattr *begin(struct message *message, int type, const void *data, int length) {
    struct nlattr *attribute = (void *)((char *)message + NLMSG_ALIGN(message->header.nlmsg_len));
    attribute->nla_type = type;
    attribute->nla_len = NLA_HDRLEN + length;
    if (length)
        memcpy((char *)attribute + NLA_HDRLEN, data, length);
    message->header.nlmsg_len = NLMSG_ALIGN(message->header.nlmsg_len) + NLA_ALIGN(attribute->nla_len);
    return attribute;
}

static void end(struct message *message, struct nlattr *nested) {
    nested->nla_len = (char *)message + message->header.nlmsg_len - (char *)nested;
    nested->nla_type |= NLA_F_NESTED;
}

static struct message start(int family, int command) {
    return (struct message){
        .header = {.nlmsg_len = NLMSG_LENGTH(GENL_HDRLEN), .nlmsg_type = family, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK},
        .generic = {.cmd = command, .version = 1},
    };
}

/* Sends a message; the answer, or the error, is in its place. */
static int ask(int netlink, struct message *message) {
    if (send(netlink, message, message->header.nlmsg_len, 0) < 0 || recv(netlink, message, sizeof *message, 0) < 0)
        return -1;
    if (message->header.nlmsg_type == NLMSG_ERROR) {
        errno = -((struct nlmsgerr *)NLMSG_DATA(&message->header))->error;
        return errno ? -1 : 0;
    }
    return 0;
}

static int family_of(int netlink) {
    struct message message = start(GENL_ID_CTRL, CTRL_CMD_GETFAMILY);
    begin(&message, CTRL_ATTR_FAMILY_NAME, "nbd", 4);
    if (ask(netlink, &message))
        stop("the kernel has no nbd");
    char *at = message.attributes, *past = (char *)&message + message.header.nlmsg_len;
    for (; at < past; at += NLA_ALIGN(((struct nlattr *)at)->nla_len))
        if (((struct nlattr *)at)->nla_type == CTRL_ATTR_FAMILY_ID)
            return *(uint16_t *)(at + NLA_HDRLEN);
    stop("the family has no number");
    return 0;
}

/* CONNECT or RECONFIGURE with these sockets. */
static int tell(int family, int command, const int *sockets, int count) {
    int netlink = socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC);
    struct message message = start(family, command);
    uint32_t index = 0;
    uint64_t bytes = be64toh(size), block = BLOCK_BYTES, timeout = TIMEOUT_SECONDS, dead = DEAD_SECONDS, server = ntohs(flags);
    begin(&message, NBD_ATTR_INDEX, &index, 4);
    if (command == NBD_CMD_CONNECT) {
        begin(&message, NBD_ATTR_SIZE_BYTES, &bytes, 8);
        begin(&message, NBD_ATTR_BLOCK_SIZE_BYTES, &block, 8);
        begin(&message, NBD_ATTR_SERVER_FLAGS, &server, 8);
    }
    begin(&message, NBD_ATTR_TIMEOUT, &timeout, 8);
    begin(&message, NBD_ATTR_DEAD_CONN_TIMEOUT, &dead, 8);
    struct nlattr *list = begin(&message, NBD_ATTR_SOCKETS, 0, 0);
    for (int i = 0; i < count; i++) {
        struct nlattr *item = begin(&message, NBD_SOCK_ITEM, 0, 0);
        begin(&message, NBD_SOCK_FD, &sockets[i], 4);
        end(&message, item);
    }
    end(&message, list);
    int result = ask(netlink, &message);
    close(netlink);
    return result;
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    const char *host = argv[1], *name = argv[3];
    int port = atoi(argv[2]), count = atoi(argv[4]), sockets[CONNECTIONS_MAX];
    struct pollfd polled[CONNECTIONS_MAX];
    int netlink = socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC), family = family_of(netlink);
    for (int i = 0; i < count; i++)
        if ((sockets[i] = attach(host, port, name)) < 0)
            stop("cannot open the export");
    if (tell(family, NBD_CMD_CONNECT, sockets, count))
        stop("the kernel refuses the sockets");
    printf("reconnect: attached with %d connections\n", count);
    fflush(stdout);
    for (;;) {
        for (int i = 0; i < count; i++)
            polled[i] = (struct pollfd){.fd = sockets[i], .events = POLLRDHUP};
        poll(polled, count, -1);
        for (int i = 0; i < count; i++) {
            if (!(polled[i].revents & (POLLRDHUP | POLLHUP | POLLERR)))
                continue;
            close(sockets[i]);
            while ((sockets[i] = attach(host, port, name)) < 0)
                usleep(RETRY_US);
            /* The kernel may not know yet that the old one is dead. */
            while (tell(family, NBD_CMD_RECONFIGURE, &sockets[i], 1))
                usleep(RETRY_US);
            printf("reconnect: connection %d is back\n", i);
            fflush(stdout);
        }
    }
}
