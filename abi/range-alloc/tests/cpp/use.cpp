// The header in C++: nothing but what that adds. Functions are tested by tests/c/use.c.
#include "amdahl_range_alloc.h"

#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#define CHECK(is)                                                                                  \
    do {                                                                                           \
        if (!(is)) {                                                                               \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #is);                                  \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

struct Destroy {
    void operator()(ara_arena *arena) const { ara_destroy(arena); }
    void operator()(ara_shared *arena) const { ara_shared_destroy(arena); }
};

static_assert(std::is_trivially_copyable<ara_request>::value, "");
static_assert(sizeof(ara_request) == 48 && sizeof(ara_block) == 24, "");
static_assert(sizeof(struct ara_stats) == 96 && sizeof(struct ara_shared_stats) == 128 && sizeof(ara_shared_config) == 64, "");
static_assert(sizeof(struct ara_fragmentation) == 2 * ARA_SIZE_CLASSES * 8, "");

extern "C" int append(void *context, const char *text, std::size_t bytes) {
    static_cast<std::string *>(context)->append(text, bytes);
    return 0;
}

int main() {
    CHECK(ara_abi_version() == ARA_ABI_VERSION);
    ara_arena *made = nullptr;
    CHECK(ara_create(0, 1000, 1, &made) == ARA_OK);
    std::unique_ptr<ara_arena, Destroy> arena(made);
    ara_request request{};
    request.size = 10;
    request.align = ARA_MAX_ALIGN;
    request.policy = ARA_LOWEST_ADDRESS;
    std::uint64_t start = 1;
    CHECK(ara_alloc(arena.get(), &request, &start) == ARA_OK && start == 0);
    std::string layout;
    CHECK(ara_layout(arena.get(), append, &layout) == ARA_OK);
    CHECK(layout == "amdahl-range-alloc 1\narena 0x0 0x3e8 granule 0x1\nbusy 0x0 0xa\n");

    ara_shared *shared = nullptr;
    CHECK(ara_shared_create(0, 1 << 20, 1, 0, 0, &shared) == ARA_OK);
    std::unique_ptr<ara_shared, Destroy> all(shared);
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; number++) {
        threads.emplace_back([&] {
            ara_request small{};
            small.size = 16;
            std::uint64_t at;
            for (int turn = 0; turn < 1000; turn++) ara_shared_alloc(all.get(), &small, &at);
        });
    }
    for (auto &thread : threads) thread.join();
    struct ara_shared_stats stats;
    CHECK(ara_shared_stats(all.get(), &stats) == ARA_OK && stats.allocations == 4000 && stats.busy_units == 64000);
    std::puts("ok");
}
