// Copies and fills, in the order of a stream.
#include "driver.h"
#include <cstring>

using namespace fake;

// Both ends are looked at when the copy is made, not when it is enqueued: memory may be gone by
// then.
static Work copy(uint64_t to, uint64_t from, size_t nbytes, bool pageable)
{
    return [=] {
        {
            std::lock_guard held(lock);
            if (!pageable && (!known(to, nbytes, false) || !known(from, nbytes, false)))
                return (int)ILLEGAL_ADDRESS;
        }
        memmove((void *)to, (void *)from, nbytes);
        return (int)SUCCESS;
    };
}

static int copied(Call &call, uint64_t to, uint64_t from, size_t nbytes, void *handle, bool wait)
{
    auto stream = stream_of(handle);
    if (!call || !stream)
        return call(INVALID_HANDLE);
    bool to_known = known(to, nbytes, false), from_known = known(from, nbytes, false);
    // An address within an allocation whose end is passed is no host memory either.
    if (nbytes && ((!to_known && known(to, 1, false)) || (!from_known && known(from, 1, false))))
        return call(INVALID_VALUE);
    bool pageable = !to_known || !from_known;
    if (pageable && stream->capture) // what is captured refers to no memory that may move
        return invalidate(*stream->capture), call(CAPTURE_UNSUPPORTED);
    int result = enqueue(stream, copy(to, from, nbytes, pageable));
    Ticket end = {stream, stream->submitted};
    // Pageable host memory makes the call wait for its stream.
    if (result == SUCCESS && (wait || pageable)) {
        if (pageable && !wait)
            note("pageable: cuMemcpyAsync waits for its stream");
        call.wait([&] { return end.reached(); });
    }
    return call(result);
}

API cuMemcpyAsync(uint64_t to, uint64_t from, size_t nbytes, void *stream)
{
    Call call("cuMemcpyAsync", CONTEXT, "%#llx, %#llx, %zu, %p", (unsigned long long)to,
              (unsigned long long)from, nbytes, stream);
    return copied(call, to, from, nbytes, stream, false);
}

API cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t nbytes)
{
    Call call("cuMemcpyHtoD", CONTEXT | UNSAFE, "%zu", nbytes);
    if (call && !known(to, nbytes, true))
        return call(INVALID_VALUE);
    return copied(call, to, (uint64_t)from, nbytes, nullptr, true);
}

API cuMemcpyDtoH_v2(void *to, uint64_t from, size_t nbytes)
{
    Call call("cuMemcpyDtoH", CONTEXT | UNSAFE, "%zu", nbytes);
    if (call && !known(from, nbytes, true))
        return call(INVALID_VALUE);
    return copied(call, (uint64_t)to, from, nbytes, nullptr, true);
}

API cuMemsetD8Async(uint64_t to, unsigned char byte, size_t nbytes, void *handle)
{
    Call call("cuMemsetD8Async", CONTEXT, "%#llx, %u, %zu, %p", (unsigned long long)to, byte,
              nbytes, handle);
    auto stream = stream_of(handle);
    if (!call || !stream)
        return call(INVALID_HANDLE);
    if (!known(to, nbytes, false))
        return call(INVALID_VALUE);
    return call(enqueue(stream, [=] {
        {
            std::lock_guard held(lock);
            if (!known(to, nbytes, false))
                return (int)ILLEGAL_ADDRESS;
        }
        memset((void *)to, byte, nbytes);
        return (int)SUCCESS;
    }));
}
