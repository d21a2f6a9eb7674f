/* Ends the program where something does not hold, and says where. */
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("%s:%d: not %s\n", __FILE__, __LINE__, #what);                                                      \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
