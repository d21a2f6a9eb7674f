/* A lock on a bare futex, after Drepper's "Futexes are tricky", mutex 2: 0 free,
 * 1 taken, 2 taken and perhaps waited for. The system call is made in place, so
 * that no libc function is on the stack. */
#ifndef RAW_FUTEX_H
#define RAW_FUTEX_H
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>

ALWAYS_INLINE long raw_futex(uint32_t *word, int op, uint32_t value)
{
#ifdef __x86_64__
    long result;
    register long timeout __asm__("r10") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"((long)SYS_futex), "D"(word), "S"((long)op), "d"((long)value), "r"(timeout)
                     : "rcx", "r11", "memory");
    return result;
#else
    return syscall(SYS_futex, word, op, value, NULL, NULL, 0);
#endif
}

ALWAYS_INLINE void raw_lock(uint32_t *word, int op_flags)
{
    uint32_t seen = 0;
    if (__atomic_compare_exchange_n(word, &seen, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    if (seen != 2)
        seen = __atomic_exchange_n(word, 2, __ATOMIC_ACQUIRE);
    while (seen != 0) {
        raw_futex(word, FUTEX_WAIT | op_flags, 2);
        seen = __atomic_exchange_n(word, 2, __ATOMIC_ACQUIRE);
    }
}

ALWAYS_INLINE void raw_unlock(uint32_t *word, int op_flags)
{
    if (__atomic_exchange_n(word, 0, __ATOMIC_RELEASE) == 2)
        raw_futex(word, FUTEX_WAKE | op_flags, 1);
}
#endif
