// Blocks in read() below templates, methods and a lambda.
#include <unistd.h>
#include <vector>

static volatile long sink;

namespace pool {
struct Worker {
    template <typename Body>
    __attribute__((noinline)) void run(int rounds, Body body) {
        for (int round = 0; round < rounds; round++)
            body(round);
        sink++;
    }
};

__attribute__((noinline)) void block(const std::vector<int> &values) {
    char byte;
    sink += read(0, &byte, values.size());
}
} // namespace pool

int main() {
    pool::Worker worker;
    std::vector<int> values(1);
    worker.run(1, [&](int) __attribute__((noinline)) {
        pool::block(values);
        sink++;
    });
    return 0;
}
