/* The unix socket to the host named in VMGPU_FAKE_NVML, and the reading of its answers. */
#include "nvml_line.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static int line_to_host = -1;
static pid_t owner; /* a socket shared with a forked child would mix up answers */

static int connected(void)
{
    const char *path = getenv("VMGPU_FAKE_NVML");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (line_to_host >= 0 && owner == getpid())
        return 1;
    if (!path || strlen(path) >= sizeof address.sun_path)
        return 0;
    strcpy(address.sun_path, path);
    line_to_host = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    owner = getpid();
    if (connect(line_to_host, (struct sockaddr *)&address, sizeof address) == 0)
        return 1;
    close(line_to_host);
    line_to_host = -1;
    return 0;
}

static int exchange(const char *question, char *reply, size_t room)
{
    size_t length = strlen(question), got = 0;
    if (write(line_to_host, question, length) != (ssize_t)length)
        return 0;
    while (got + 1 < room) {
        ssize_t more = read(line_to_host, reply + got, room - got - 1);
        if (more <= 0)
            return 0;
        got += (size_t)more;
        if (reply[got - 1] == '\n') {
            reply[got - 1] = 0;
            return 1;
        }
    }
    return 0;
}

code ask(answer *to, const char *question, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, question);
    vsnprintf(line, sizeof line - 1, question, arguments);
    va_end(arguments);
    strcat(line, "\n");
    pthread_mutex_lock(&one_at_a_time);
    code result = UNINITIALIZED;
    if (line_to_host >= 0 && owner == getpid())
        result = exchange(line, to->text, sizeof to->text) ? SUCCESS : UNKNOWN;
    pthread_mutex_unlock(&one_at_a_time);
    if (result)
        return result;
    to->next = strchr(to->text, '\t');
    if (to->next)
        to->next++;
    return atoi(to->text);
}

static char *word(answer *from)
{
    char *here = from->next ? from->next : "";
    char *end = strchr(here, '\t');
    from->next = end ? end + 1 : NULL;
    if (end)
        *end = 0;
    return here;
}

u64 number(answer *from) { return strtoull(word(from), NULL, 10); }

code text(answer *from, char *to, u32 room)
{
    char *found = word(from);
    if (strlen(found) >= room)
        return INSUFFICIENT_SIZE;
    strcpy(to, found);
    return SUCCESS;
}

code list(answer *from, u32 *count, u32 *to)
{
    u32 have = (u32)number(from);
    if (have && (!to || *count < have)) {
        *count = have;
        return INSUFFICIENT_SIZE;
    }
    *count = have;
    for (u32 n = 0; n < have; n++)
        to[n] = (u32)number(from);
    return SUCCESS;
}

int line_open(void)
{
    pthread_mutex_lock(&one_at_a_time);
    int there = connected();
    pthread_mutex_unlock(&one_at_a_time);
    return there;
}

void line_close(void)
{
    pthread_mutex_lock(&one_at_a_time);
    if (line_to_host >= 0)
        close(line_to_host);
    line_to_host = -1;
    pthread_mutex_unlock(&one_at_a_time);
}
