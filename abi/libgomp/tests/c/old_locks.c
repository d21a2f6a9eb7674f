/* Locks as programs for OpenMP 2.5 use them. Prints "ok". */

#include <stdio.h>
#include <stdlib.h>

typedef struct { int word; } old_lock;
/* Smaller than the type of today; what lies behind must stay as it is. */
typedef struct { int words[2]; } old_nest_lock;

#define OLD(result, name, type)                                         \
    extern result name(type *);                                         \
    __asm__(".symver " #name ", omp_" #name "@OMP_1.0");

OLD(void, init_lock, old_lock)
OLD(void, destroy_lock, old_lock)
OLD(void, set_lock, old_lock)
OLD(void, unset_lock, old_lock)
OLD(int, test_lock, old_lock)
OLD(void, init_nest_lock, old_nest_lock)
OLD(void, destroy_nest_lock, old_nest_lock)
OLD(void, set_nest_lock, old_nest_lock)
OLD(void, unset_nest_lock, old_nest_lock)
OLD(int, test_nest_lock, old_nest_lock)
/* Those of Fortran have integers of 8 bytes, into which these locks fit. */
OLD(void, init_nest_lock_, old_nest_lock)
OLD(void, set_nest_lock_, old_nest_lock)
OLD(int, test_nest_lock_, old_nest_lock)
OLD(void, unset_nest_lock_, old_nest_lock)
OLD(void, destroy_nest_lock_, old_nest_lock)

#define CHECK(what)                                                                 \
    do {                                                                            \
        if (!(what)) {                                                              \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);              \
            abort();                                                                \
        }                                                                           \
    } while (0)

int main(void)
{
    struct { int before; old_lock lock; int after; } plain = {-1, {-1}, -1};
    struct { int before; old_nest_lock lock; int after; } nest = {-1, {{-1, -1}}, -1}, fortran = nest;
    int sum = 0, nested = 0, other = 0;

    init_lock(&plain.lock);
    init_nest_lock(&nest.lock);
    init_nest_lock_(&fortran.lock);
    #pragma omp parallel num_threads(6)
    for (int i = 0; i < 1000; i++) {
        if (!test_lock(&plain.lock)) set_lock(&plain.lock);
        sum++;
        unset_lock(&plain.lock);

        set_nest_lock(&nest.lock);
        CHECK(test_nest_lock(&nest.lock) == 2);
        nested++;
        /* The thread owns it, whatever it executes. */
        #pragma omp task if(0) shared(nest)
        {
            CHECK(test_nest_lock(&nest.lock) == 3);
            unset_nest_lock(&nest.lock);
        }
        unset_nest_lock(&nest.lock);
        unset_nest_lock(&nest.lock);

        set_nest_lock_(&fortran.lock);
        CHECK(test_nest_lock_(&fortran.lock) == 2);
        other++;
        unset_nest_lock_(&fortran.lock);
        unset_nest_lock_(&fortran.lock);
    }
    CHECK(test_lock(&plain.lock) == 1 && test_lock(&plain.lock) == 0);
    unset_lock(&plain.lock);
    destroy_lock(&plain.lock);
    destroy_nest_lock(&nest.lock);
    destroy_nest_lock_(&fortran.lock);
    CHECK(sum == 6000 && nested == 6000 && other == 6000);
    CHECK(plain.before == -1 && plain.after == -1);
    CHECK(nest.before == -1 && nest.after == -1 && fortran.before == -1 && fortran.after == -1);
    puts("ok");
    return 0;
}
