// Counters in memory that several processes share. What a process has written before it stores a counter is seen by
// those that have waited for it.

#include <chrono>
#include <cstdint>
#include <thread>

constexpr int SPINS = 2000;  // before the core is offered to others

extern "C" void store_counter_int64(int64_t *counter, int64_t value) {
    __atomic_store_n(counter, value, __ATOMIC_RELEASE);
}

// Returns whether all of `num` counters, `stride` numbers apart, have reached `value` within so many seconds.
extern "C" int wait_for_counters_int64(const int64_t *counters, long num, long stride, int64_t value, double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (long at = 0, spins = 0; at < num;) {
        if (__atomic_load_n(counters + at * stride, __ATOMIC_ACQUIRE) >= value) {
            at++;
        } else if (++spins % SPINS == 0) {
            if (std::chrono::steady_clock::now() > end) return 0;
            std::this_thread::yield();
        }
    }
    return 1;
}
