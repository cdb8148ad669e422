// Green contexts: parts of a GPU's multiprocessors. As on compute capability 9.0 a part has a
// multiple of 8 of them, and what a split gives is not split again.
#include "driver.h"
#include <algorithm>
#include <cstring>

namespace fake
{

enum { RESOURCE_INVALID = 0, RESOURCE_SM = 1 };
enum { LEAST_PART = 8, PART_UNIT = 8 };
enum { DEFAULT_STREAM = 1 };

struct Resource { // as CUdevResource
    int type;
    struct {
        int device;
        unsigned split; // the number of the call that made it; 0: it is a whole device
        unsigned char sms[MULTIPROCESSORS / 2];
    } own;
    char padding[92 - sizeof own];
    unsigned count, least, unit;
    char oversize[36];
};
static_assert(sizeof(Resource) == 144 && offsetof(Resource, count) == 96, "as the driver's");

static std::set<unsigned> of(const Resource &resource)
{
    std::set<unsigned> found;
    for (unsigned i = 0; i < MULTIPROCESSORS; i++)
        if (resource.own.sms[i / 8] >> i % 8 & 1)
            found.insert(i);
    return found;
}

// From `first` on, so many.
static Resource resource(int device, unsigned split, unsigned first, unsigned count)
{
    Resource made = {};
    made.type = count ? RESOURCE_SM : RESOURCE_INVALID;
    made.own.device = device;
    made.own.split = split;
    for (unsigned i = first; i < first + count; i++)
        made.own.sms[i / 8] |= (unsigned char)(1 << i % 8);
    made.count = count;
    made.least = LEAST_PART;
    made.unit = PART_UNIT;
    return made;
}

struct Description {
    int device;
    std::set<unsigned> sms;
};
static Handles<Description> &descriptions = *new Handles<Description>;
static Handles<Green> &greens = *new Handles<Green>;
static std::set<void *> &destroyed = *new std::set<void *>;
static std::map<void *, std::shared_ptr<Green>> &contexts_of = // by what cuCtxFromGreenCtx gave
    *new std::map<void *, std::shared_ptr<Green>>;

std::shared_ptr<Green> green_of(void *context)
{
    auto found = contexts_of.find(context);
    return found == contexts_of.end() || found->second->ended ? nullptr : found->second;
}

} // namespace fake
using namespace fake;

API cuDeviceGetDevResource(int device, Resource *out, int type)
{
    Call call("cuDeviceGetDevResource", INITIALIZED, "%d, %d", device, type);
    if (!call || device < 0 || device >= devices())
        return call(INVALID_DEVICE);
    if (!out)
        return call(INVALID_VALUE);
    if (type != RESOURCE_SM)
        return call(INVALID_RESOURCE_TYPE);
    *out = resource(device, 0, 0, MULTIPROCESSORS);
    // Those of CUDA 12 do not tell how it can be parted.
    if (!option("LIMITS", 0))
        out->least = out->unit = 0;
    return call();
}

API cuDevSmResourceSplitByCount(Resource *result, unsigned *groups, const Resource *input,
                                Resource *remaining, unsigned flags, unsigned least)
{
    static unsigned splits;
    Call call("cuDevSmResourceSplitByCount", INITIALIZED, "%u, %u", flags, least);
    if (!call || !groups || !input || flags)
        return call(INVALID_VALUE);
    if (input->type != RESOURCE_SM)
        return call(INVALID_RESOURCE_TYPE);
    if (input->own.split)
        return call(INVALID_RESOURCE_CONFIGURATION);
    if (least > input->count || (result && *groups == 0))
        return call(INVALID_VALUE);
    unsigned each = std::max<unsigned>((least + PART_UNIT - 1) / PART_UNIT * PART_UNIT, LEAST_PART);
    unsigned most = input->count / each;
    if (!most)
        return call(INVALID_RESOURCE_CONFIGURATION);
    *groups = result ? std::min(*groups, most) : most;
    unsigned split = ++splits, taken = *groups * each;
    for (unsigned i = 0; result && i < *groups; i++)
        result[i] = resource(input->own.device, split, i * each, each);
    if (remaining)
        *remaining = resource(input->own.device, split, taken, input->count - taken);
    return call();
}

API cuDevResourceGenerateDesc(void **out, Resource *resources, unsigned count)
{
    Call call("cuDevResourceGenerateDesc", INITIALIZED, "%u", count);
    if (!call || !out || !resources || !count)
        return call(INVALID_VALUE);
    auto made = std::make_shared<Description>();
    made->device = resources->own.device;
    for (unsigned i = 0; i < count; i++) {
        if (resources[i].type != RESOURCE_SM)
            return call(INVALID_RESOURCE_TYPE);
        if (resources[i].own.device != made->device
            || resources[i].own.split != resources->own.split)
            return call(INVALID_RESOURCE_CONFIGURATION);
        for (unsigned sm : of(resources[i]))
            made->sms.insert(sm);
    }
    *out = descriptions.add(made);
    return call();
}

// It may allocate: so it may wait, as far as is known.
API cuGreenCtxCreate(void **out, void *description, int device, unsigned flags)
{
    Call call("cuGreenCtxCreate", INITIALIZED, "%d, %u", device, flags);
    auto of = descriptions.find(description);
    if (!call || !out || !of || flags != DEFAULT_STREAM)
        return call(INVALID_VALUE);
    if (device < 0 || device >= devices())
        return call(INVALID_DEVICE);
    if (device != of->device)
        return call(INVALID_VALUE);
    if (!option("GREEN", 1))
        return call(NOT_SUPPORTED);
    if (int result = call.settle(device))
        return call(result);
    auto made = std::make_shared<Green>();
    made->device = device;
    made->sms = of->sms;
    *out = greens.add(made);
    destroyed.erase(*out);
    return call();
}

// Its streams should be gone: what is left of them is lost.
API cuGreenCtxDestroy(void *handle)
{
    Call call("cuGreenCtxDestroy", INITIALIZED, "%p", handle);
    auto green = greens.find(handle);
    if (!call || !green)
        return call(destroyed.count(handle) ? CONTEXT_IS_DESTROYED : INVALID_CONTEXT);
    if (int result = call.settle(green->device))
        return call(result);
    green->ended = true;
    for (auto &[at, stream] : streams.all)
        if (stream->green == green)
            note("leak: stream %p outlives its green context %p", at, handle);
    greens.all.erase(handle);
    destroyed.insert(handle);
    return call();
}

API cuCtxFromGreenCtx(void **out, void *handle)
{
    Call call("cuCtxFromGreenCtx", INITIALIZED, "%p", handle);
    auto green = greens.find(handle);
    if (!call || !green || !out)
        return call(green ? INVALID_VALUE : INVALID_CONTEXT);
    *out = &green->context;
    contexts_of[*out] = green;
    return call();
}

API cuGreenCtxStreamCreate(void **out, void *handle, unsigned flags, int priority)
{
    Call call("cuGreenCtxStreamCreate", INITIALIZED, "%p, %u, %d", handle, flags, priority);
    auto green = greens.find(handle);
    if (!call || !green)
        return call(INVALID_CONTEXT);
    if (!out || flags != STREAM_NON_BLOCKING)
        return call(INVALID_VALUE);
    *out = new_stream(green->device, flags, priority, green);
    return call();
}
