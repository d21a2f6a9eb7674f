/* Functions of programs that were compiled for OpenMP 2.5: names that have another meaning since, with the version
   that these programs ask for. Only an object that defines a name can give it a version, and only a linker with the
   script of versions takes it; so these are neither in the Rust library nor in its tests. */

#define OLD(type, name, does)                                  \
    extern type does(void *lock);                              \
    type old_##name(void *lock);                               \
    type old_##name(void *lock) { return does(lock); }         \
    __asm__(".symver old_" #name ", " #name "@OMP_1.0");

/* Locks that cannot be nested are the same in both versions. */
#define BOTH(type, name)                                       \
    OLD(type, name, name)                                      \
    OLD(type, name##_, name##_)
#define OTHER(type, name)                                      \
    OLD(type, omp_##name, amdahl_omp_1_0_##name)               \
    OLD(type, omp_##name##_, amdahl_omp_1_0_##name##_)

BOTH(void, omp_init_lock)
BOTH(void, omp_destroy_lock)
BOTH(void, omp_set_lock)
BOTH(void, omp_unset_lock)
BOTH(int, omp_test_lock)
OTHER(void, init_nest_lock)
OTHER(void, destroy_nest_lock)
OTHER(void, set_nest_lock)
OTHER(void, unset_nest_lock)
OTHER(int, test_nest_lock)
