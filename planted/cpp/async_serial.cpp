// A serial merge after each parallel round of std::async: 1/3 of the work is serial.
#include "../c/planted.h"
#include <future>
#include <vector>

enum { ROUNDS = 12, PARALLEL = 32000, SERIAL = 16000 };

NOINLINE static void merge_all_parts() { burn(SERIAL); }
NOINLINE static void sort_my_part(uint64_t units) { burn(units); }

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    double serial = 0;
    for (int round = 0; round < ROUNDS; round++) {
        std::vector<std::future<void>> parts;
        for (int id = 0; id < n; id++)
            parts.push_back(std::async(std::launch::async, sort_my_part,
                                       uint64_t(share(PARALLEL, id, n))));
        for (auto &part : parts)
            part.get();
        double since = wall_now();
        merge_all_parts();
        serial += wall_now() - since;
    }
    tell("serial", (n - 1) * serial);
}
