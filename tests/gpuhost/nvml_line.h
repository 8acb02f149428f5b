/* One question to the host, one answer: what the calls of NVML are made of. */
#ifndef NVML_LINE_H
#define NVML_LINE_H

#include <stddef.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9,
       VERSION_MISMATCH = 25, UNKNOWN = 999 };

typedef unsigned int u32;
typedef unsigned long long u64;
typedef int code;

typedef struct {
    char text[65536];
    char *next;
} answer;

#pragma GCC visibility push(hidden) /* Python itself may have a symbol called `list` */
int line_open(void);
void line_close(void);
__attribute__((format(printf, 2, 3))) code ask(answer *to, const char *question, ...);
u64 number(answer *from);
code text(answer *from, char *to, u32 room);
code list(answer *from, u32 *count, u32 *to); /* too little room answers how much is needed */
#pragma GCC visibility pop

#define ASK(...)                          \
    answer a;                             \
    code asked = ask(&a, __VA_ARGS__);    \
    if (asked)                            \
    return asked
#define HANDLE(pointer) ((unsigned long long)(size_t)(pointer))
#define DEVICE_TEXT(function, name)                       \
    code function(void *device, char *to, u32 room)       \
    {                                                     \
        ASK(name "\t%llu", HANDLE(device));               \
        return text(&a, to, room);                        \
    }
#define DEVICE_NUMBER(function, name, type)               \
    code function(void *device, type *to)                 \
    {                                                     \
        ASK(name "\t%llu", HANDLE(device));               \
        *to = (type)number(&a);                           \
        return SUCCESS;                                   \
    }
#define DEVICE_PAIR(function, name)                       \
    code function(void *device, u32 *first, u32 *second)  \
    {                                                     \
        ASK(name "\t%llu", HANDLE(device));               \
        *first = (u32)number(&a);                         \
        *second = (u32)number(&a);                        \
        return SUCCESS;                                   \
    }
#define DEVICE_LIST(function, name)                       \
    code function(void *device, u32 *count, u32 *to)      \
    {                                                     \
        ASK(name "\t%llu", HANDLE(device));               \
        return list(&a, count, to);                       \
    }
#define ID_NUMBER(function, name, type)                   \
    code function(u32 id, type *to)                       \
    {                                                     \
        ASK(name "\t%u", id);                             \
        *to = (type)number(&a);                           \
        return SUCCESS;                                   \
    }
#define ID_TEXT(function, name)                           \
    code function(u32 id, char *to, u32 room)             \
    {                                                     \
        ASK(name "\t%u", id);                             \
        return text(&a, to, room);                        \
    }

#endif
