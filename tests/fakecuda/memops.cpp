// Words that a stream writes, and waits for. A wait knows no deadline: whoever wants it to end
// writes the word.
#include "driver.h"
#include <chrono>
#include <thread>

using namespace fake;

static int admitted(Call &call, const std::shared_ptr<Stream> &stream, uint64_t address,
                    unsigned flags)
{
    if (!call || !stream)
        return INVALID_HANDLE;
    if (!option("MEMOPS", 1))
        return NOT_SUPPORTED;
    if (flags || address % 8 || !known(address, 8, false))
        return INVALID_VALUE;
    return SUCCESS;
}

API cuStreamWriteValue64_v2(void *handle, uint64_t address, uint64_t value, unsigned flags)
{
    Call call("cuStreamWriteValue64", CONTEXT, "%p, %#llx, %llu", handle,
              (unsigned long long)address, (unsigned long long)value);
    auto stream = stream_of(handle);
    if (int result = admitted(call, stream, address, flags))
        return call(result);
    return call(enqueue(stream, [=] {
        {
            std::lock_guard held(lock);
            if (!known(address, 8, false))
                return (int)ILLEGAL_ADDRESS;
        }
        __atomic_store_n((uint64_t *)address, value, __ATOMIC_RELEASE);
        return (int)SUCCESS;
    }));
}

API cuStreamWaitValue64_v2(void *handle, uint64_t address, uint64_t value, unsigned flags)
{
    Call call("cuStreamWaitValue64", CONTEXT, "%p, %#llx, %llu", handle,
              (unsigned long long)address, (unsigned long long)value);
    auto stream = stream_of(handle);
    if (int result = admitted(call, stream, address, flags))
        return call(result);
    return call(enqueue(stream, [=] {
        while ((int64_t)(__atomic_load_n((uint64_t *)address, __ATOMIC_ACQUIRE) - value) < 0)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        return (int)SUCCESS;
    }));
}
