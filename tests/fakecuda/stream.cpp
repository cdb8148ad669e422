// Streams and events. A stream is a thread that does its work in order; it begins with the first of
// it. An event is a place in a stream's order.
#include "driver.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

namespace fake
{

Handles<Stream> &streams = *new Handles<Stream>;
static std::vector<std::weak_ptr<Stream>> &everyone = *new std::vector<std::weak_ptr<Stream>>;
static std::shared_ptr<Stream> legacy[16];           // the default stream of each device
static thread_local std::shared_ptr<Stream> own[16]; // "per thread", of each device

bool Ticket::reached() const
{
    return !stream || stream->completed >= number;
}

static void serve(std::shared_ptr<Stream> stream)
{
    std::unique_lock held(lock);
    for (;;) {
        changed.wait(held, [&] { return !stream->queue.empty() || stream->ended; });
        if (stream->queue.empty())
            return;
        changed.wait(held, [&] {
            for (const Ticket &ticket : stream->queue.front().after)
                if (!ticket.reached())
                    return false;
            return true;
        });
        Work work = std::move(stream->queue.front().work);
        bool dead = poisoned_now(stream->device) != SUCCESS;
        work_begins();
        held.unlock();
        pass_guard();
        int result = work && !dead ? work() : SUCCESS;
        work = nullptr; // with what it refers to, outside the lock
        held.lock();
        work_ends();
        if (result != SUCCESS)
            poison(stream->device, result);
        stream->queue.pop_front();
        stream->completed++;
        changed.notify_all();
    }
}

// The streams of a device, with those that are destroyed and still work.
static std::vector<std::shared_ptr<Stream>> of_device(int device)
{
    std::vector<std::shared_ptr<Stream>> found;
    for (const auto &one : everyone)
        if (auto stream = one.lock(); stream && stream->device == device)
            found.push_back(stream);
    return found;
}

bool idle(int device)
{
    for (const auto &stream : of_device(device))
        if (stream->completed < stream->submitted)
            return false;
    return true;
}

int settle(std::unique_lock<std::mutex> &held, int device, const char *who)
{
    int seconds = option("PATIENCE", 30);
    std::vector<Ticket> ends;
    for (const auto &stream : of_device(device))
        ends.push_back({stream, stream->submitted});
    if (changed.wait_for(held, std::chrono::seconds(seconds), [&] {
            return std::all_of(ends.begin(), ends.end(), [](auto &end) { return end.reached(); });
        }))
        return SUCCESS;
    note("deadlock: %s waits for kernels that run, as the driver may; they have not ended in %d s",
         who, seconds);
    fprintf(stderr,
            "fakecuda: %s has waited %d s for kernels that run: do they wait for its caller?\n",
            who, seconds);
    return LAUNCH_TIMEOUT;
}

static std::shared_ptr<Stream> made(int device, unsigned flags, int priority)
{
    auto stream = std::make_shared<Stream>();
    stream->device = device;
    stream->flags = flags;
    stream->priority = priority;
    streams.add(stream);
    everyone.erase(std::remove_if(everyone.begin(), everyone.end(),
                                  [](const auto &one) { return one.expired(); }),
                   everyone.end());
    everyone.push_back(stream);
    return stream;
}

// 0 and 1 are the legacy default stream, 2 that of this thread.
std::shared_ptr<Stream> stream_of(void *handle)
{
    int device = current_device();
    if (device < 0)
        return nullptr;
    if ((uintptr_t)handle <= 1) {
        if (!legacy[device]) {
            legacy[device] = made(device, 0, 0);
            legacy[device]->legacy = true;
        }
        return legacy[device];
    }
    if ((uintptr_t)handle == 2) {
        if (!own[device])
            own[device] = made(device, 0, 0);
        return own[device];
    }
    auto found = streams.find(handle);
    if (!found || !found->green || !found->green->ended)
        return found;
    orphan = true;
    return nullptr;
}

// A priority outside the range is the nearest one in it.
void *new_stream(int device, unsigned flags, int priority, std::shared_ptr<Green> green)
{
    int within = priority < GREATEST_PRIORITY ? (int)GREATEST_PRIORITY
                 : priority > LEAST_PRIORITY  ? (int)LEAST_PRIORITY
                                              : priority;
    auto stream = made(device, flags, within);
    stream->green = green;
    return stream.get();
}

std::set<unsigned> multiprocessors(const Stream &stream)
{
    std::set<unsigned> all;
    for (unsigned i = 0; i < MULTIPROCESSORS; i++)
        all.insert(i);
    return stream.green ? stream.green->sms : all;
}

static bool blocking(const Stream &stream)
{
    return !(stream.flags & STREAM_NON_BLOCKING);
}

// The legacy stream begins when every blocking stream of the device has done what it was given
// before, and they begin what they are given later when it is done.
static int implied(const std::shared_ptr<Stream> &stream, std::vector<Ticket> &after)
{
    for (const auto &other : of_device(stream->device)) {
        if (other == stream || !blocking(*other) || !blocking(*stream)
            || !(stream->legacy || other->legacy))
            continue;
        if (other->capture) { // only `other` can be: the legacy stream is never captured
            invalidate(*other->capture);
            return CAPTURE_IMPLICIT;
        }
        after.push_back({other, other->submitted});
    }
    return SUCCESS;
}

int enqueue(const std::shared_ptr<Stream> &stream, Work work, std::vector<Ticket> after)
{
    if (stream->capture) {
        Capture &capture = *stream->capture;
        if (capture.invalid)
            return CAPTURE_INVALIDATED;
        capture.graph->nodes.push_back({std::move(work), stream->tips});
        stream->tips = {(int)capture.graph->nodes.size() - 1};
        return SUCCESS;
    }
    int result = implied(stream, after);
    if (result != SUCCESS)
        return result;
    stream->queue.push_back({std::move(work), std::move(after)});
    stream->submitted++;
    if (!stream->running) {
        stream->running = true;
        std::thread(serve, stream).detach();
    }
    changed.notify_all();
    return SUCCESS;
}

enum { EVENT_DISABLE_TIMING = 2 };

struct Event {
    unsigned flags = 0;
    bool recorded = false;
    Ticket at;
    std::shared_ptr<double> time = std::make_shared<double>(0); // milliseconds
    std::shared_ptr<Capture> capture;                           // it was last recorded in
    std::set<int> tips;
};
static Handles<Event> &events = *new Handles<Event>;

static double now()
{
    auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(since).count();
}

// A capturing stream begins where the event was, or a stream joins the capture there.
static int captured_wait(const std::shared_ptr<Stream> &stream, const Event &event)
{
    if (!event.capture) { // recorded outside: such a dependency would cross the capture's border
        if (!event.recorded)
            return SUCCESS;
        invalidate(*stream->capture);
        return CAPTURE_ISOLATION;
    }
    if (event.capture->ended)
        return CAPTURED_EVENT;
    if (event.capture->invalid)
        return CAPTURE_INVALIDATED;
    if (stream->capture && stream->capture != event.capture) {
        invalidate(*stream->capture);
        invalidate(*event.capture);
        return CAPTURE_MERGE;
    }
    if (stream->legacy) {
        invalidate(*event.capture);
        return CAPTURE_IMPLICIT;
    }
    stream->capture = event.capture;
    event.capture->streams.insert(stream);
    stream->tips.insert(event.tips.begin(), event.tips.end());
    return SUCCESS;
}

// What asks a stream or event how far it is: cannot be answered while that is captured.
static int unanswerable(const std::shared_ptr<Capture> &capture)
{
    if (!capture)
        return SUCCESS;
    invalidate(*capture);
    return CAPTURE_UNSUPPORTED;
}

} // namespace fake
using namespace fake;

API cuStreamCreateWithPriority(void **out, unsigned flags, int priority)
{
    Call call("cuStreamCreateWithPriority", CONTEXT, "%u, %d", flags, priority);
    if (!call || flags > STREAM_NON_BLOCKING)
        return call(INVALID_VALUE);
    *out = new_stream(current_device(), flags, priority, current_green());
    return call();
}

API cuStreamCreate(void **out, unsigned flags)
{
    return cuStreamCreateWithPriority(out, flags, 0);
}

API cuStreamGetPriority(void *handle, int *out)
{
    Call call("cuStreamGetPriority", CONTEXT | UNLOGGED);
    auto stream = stream_of(handle);
    if (!call || !stream)
        return call(INVALID_HANDLE);
    *out = stream->priority;
    return call();
}

// Returns at once; what it was given is still done.
API cuStreamDestroy_v2(void *handle)
{
    Call call("cuStreamDestroy", CONTEXT, "%p", handle);
    auto stream = (uintptr_t)handle <= 2 ? nullptr : stream_of(handle);
    if (!call || !stream)
        return call(INVALID_HANDLE);
    if (stream->capture)
        invalidate(*stream->capture);
    stream->ended = true;
    streams.all.erase(handle);
    changed.notify_all();
    return call();
}

API cuStreamQuery(void *handle)
{
    Call call("cuStreamQuery", CONTEXT | UNLOGGED | UNSAFE);
    auto stream = stream_of(handle);
    if (!call || !stream)
        return call(INVALID_HANDLE);
    if (int result = unanswerable(stream->capture))
        return call(result);
    return call(stream->completed < stream->submitted ? NOT_READY : SUCCESS);
}

API cuStreamSynchronize(void *handle)
{
    Call call("cuStreamSynchronize", CONTEXT | UNSAFE, "%p", handle);
    auto stream = stream_of(handle);
    if (!call || !stream)
        return call(INVALID_HANDLE);
    if (int result = unanswerable(stream->capture))
        return call(result);
    std::vector<Ticket> ends = {{stream, stream->submitted}};
    if (int result = implied(stream, ends))
        return call(result);
    call.wait([&] {
        for (const Ticket &end : ends)
            if (!end.reached())
                return false;
        return true;
    });
    return call(poisoned_now(stream->device));
}

API cuCtxSynchronize(void)
{
    Call call("cuCtxSynchronize", CONTEXT | UNSAFE);
    int device = current_device();
    if (!call)
        return call();
    for (const auto &stream : of_device(device))
        if (stream->capture)
            return call(unanswerable(stream->capture));
    call.wait([&] { return idle(device); });
    return call(poisoned_now(device));
}

API cuEventCreate(void **out, unsigned flags)
{
    Call call("cuEventCreate", CONTEXT, "%u", flags);
    if (!call || flags > 3) // no event for other processes
        return call(INVALID_VALUE);
    auto event = std::make_shared<Event>();
    event->flags = flags;
    *out = events.add(event);
    return call();
}

API cuEventDestroy_v2(void *handle)
{
    Call call("cuEventDestroy", CONTEXT, "%p", handle);
    if (!call || !events.find(handle))
        return call(INVALID_HANDLE);
    events.all.erase(handle);
    return call();
}

API cuEventRecord(void *handle, void *in)
{
    Call call("cuEventRecord", CONTEXT, "%p, %p", handle, in);
    auto event = events.find(handle);
    auto stream = stream_of(in);
    if (!call || !event || !stream)
        return call(INVALID_HANDLE);
    if (stream->capture) {
        if (stream->capture->invalid)
            return call(CAPTURE_INVALIDATED);
        event->capture = stream->capture;
        event->tips = stream->tips;
        event->recorded = true;
        return call();
    }
    auto time = std::make_shared<double>(0);
    int result = enqueue(stream, [time] {
        *time = now();
        return (int)SUCCESS;
    });
    if (result != SUCCESS)
        return call(result);
    event->capture = nullptr;
    event->recorded = true;
    event->time = time;
    event->at = {stream, stream->submitted};
    return call();
}

API cuEventQuery(void *handle)
{
    Call call("cuEventQuery", CONTEXT | UNLOGGED | UNSAFE);
    auto event = events.find(handle);
    if (!call || !event)
        return call(INVALID_HANDLE);
    if (event->capture)
        return event->capture->ended ? call(CAPTURED_EVENT) : call(unanswerable(event->capture));
    return call(event->at.reached() ? SUCCESS : NOT_READY);
}

API cuEventSynchronize(void *handle)
{
    Call call("cuEventSynchronize", CONTEXT | UNSAFE, "%p", handle);
    auto event = events.find(handle);
    if (!call || !event)
        return call(INVALID_HANDLE);
    if (event->capture)
        return event->capture->ended ? call(CAPTURED_EVENT) : call(unanswerable(event->capture));
    Ticket at = event->at;
    call.wait([&] { return at.reached(); });
    return call(poisoned_now(current_device()));
}

API cuEventElapsedTime(float *out, void *from, void *to)
{
    Call call("cuEventElapsedTime", CONTEXT);
    auto start = events.find(from), end = events.find(to);
    if (!call || !start || !end || !start->recorded || !end->recorded
        || ((start->flags | end->flags) & EVENT_DISABLE_TIMING))
        return call(INVALID_HANDLE);
    if (start->capture || end->capture)
        return call(CAPTURED_EVENT);
    if (!start->at.reached() || !end->at.reached())
        return call(NOT_READY);
    *out = (float)(*end->time - *start->time);
    return call();
}

API cuStreamWaitEvent(void *handle, void *on, unsigned flags)
{
    Call call("cuStreamWaitEvent", CONTEXT, "%p, %p", handle, on);
    auto stream = stream_of(handle);
    auto event = events.find(on);
    if (!call || !event || !stream)
        return call(INVALID_HANDLE);
    if (flags)
        return call(INVALID_VALUE);
    if (stream->capture && stream->capture->invalid)
        return call(CAPTURE_INVALIDATED);
    if (stream->capture || event->capture)
        return call(captured_wait(stream, *event));
    if (!event->recorded)
        return call();
    return call(enqueue(stream, nullptr, {event->at}));
}
