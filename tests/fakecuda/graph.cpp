// Capture into graphs, graphs that are launched, and the user objects that these keep alive.
#include "driver.h"
#include <thread>

enum { MODE_GLOBAL = 0, MODE_THREAD_LOCAL = 1, MODE_RELAXED = 2 };

namespace fake
{

std::set<std::shared_ptr<Capture>> &captures = *new std::set<std::shared_ptr<Capture>>;
static uint64_t next_capture = 1;
static thread_local int thread_mode = MODE_GLOBAL;

struct User {
    void *at;
    void (*destroy)(void *);
    uint64_t references;
};
static Handles<User> &users = *new Handles<User>;

// The driver calls destructors on a thread of its own.
static void release(const std::shared_ptr<User> &user, unsigned n)
{
    user->references -= n;
    if (user->references)
        return;
    users.all.erase(user.get());
    std::thread(user->destroy, user->at).detach();
}

struct Hold {
    std::shared_ptr<User> user;
    unsigned n;
    Hold(std::shared_ptr<User> user, unsigned n) : user(user), n(n)
    {
    }
    ~Hold()
    {
        std::thread([user = user, n = n] {
            std::lock_guard held(lock);
            release(user, n);
        }).detach();
    }
};

struct Executable {
    Graph graph;
    Ticket last; // of its launches
};
static Handles<Graph> &graphs = *new Handles<Graph>;
static Handles<Executable> &executables = *new Handles<Executable>;

void invalidate(Capture &capture)
{
    capture.invalid = true;
}

// The rule is at cuThreadExchangeStreamCaptureMode: a thread whose mode is GLOBAL must not, while
// it has a capture that is not relaxed or another thread has a global one; THREAD_LOCAL: its own
// captures only; RELAXED: always may. Whoever does so all the same invalidates these captures.
int forbidden()
{
    int result = SUCCESS;
    for (const auto &capture : captures) {
        bool mine = capture->thread == this_thread();
        if (thread_mode == MODE_RELAXED || capture->mode == MODE_RELAXED
            || (!mine && (thread_mode != MODE_GLOBAL || capture->mode != MODE_GLOBAL)))
            continue;
        invalidate(*capture);
        result = CAPTURE_UNSUPPORTED;
    }
    return result;
}

// Each node on a thread of its own, as soon as those before it have ended.
int run(const Graph &graph)
{
    std::mutex guard;
    std::condition_variable progress;
    std::vector<bool> done(graph.nodes.size());
    int result = SUCCESS;
    together((uint32_t)graph.nodes.size(), [&](uint32_t i) {
        std::unique_lock held(guard);
        progress.wait(held, [&] {
            for (int before : graph.nodes[i].after)
                if (!done[(size_t)before])
                    return false;
            return true;
        });
        held.unlock();
        int mine = graph.nodes[i].work ? graph.nodes[i].work() : SUCCESS;
        held.lock();
        if (mine != SUCCESS)
            result = mine;
        done[i] = true;
        progress.notify_all();
    });
    return result;
}

static bool reachable(const Graph &graph, const std::set<int> &from, const std::set<int> &wanted)
{
    std::set<int> seen;
    std::vector<int> next(from.begin(), from.end());
    while (!next.empty()) {
        int node = next.back();
        next.pop_back();
        if (seen.insert(node).second)
            for (int before : graph.nodes[(size_t)node].after)
                next.push_back(before);
    }
    for (int node : wanted)
        if (!seen.count(node))
            return false;
    return true;
}

// The legacy stream cannot be asked while a blocking stream is captured.
static int legacy_unusable(const Stream &stream)
{
    for (const auto &capture : captures)
        for (const auto &other : capture->streams)
            if (stream.legacy && other->device == stream.device
                && !(other->flags & STREAM_NON_BLOCKING))
                return CAPTURE_IMPLICIT;
    return SUCCESS;
}

static int status(const Stream &stream)
{
    return !stream.capture ? 0 : stream.capture->invalid ? 2 : 1;
}

} // namespace fake
using namespace fake;

API cuThreadExchangeStreamCaptureMode(int *mode)
{
    Call call("cuThreadExchangeStreamCaptureMode", INITIALIZED, "%d", *mode);
    if (!call || *mode < MODE_GLOBAL || *mode > MODE_RELAXED)
        return call(INVALID_VALUE);
    std::swap(*mode, thread_mode);
    return call();
}

API cuStreamBeginCapture_v2(void *handle, int mode)
{
    Call call("cuStreamBeginCapture", CONTEXT, "%p, %d", handle, mode);
    auto stream = stream_of(handle);
    if (!call || !stream || mode < MODE_GLOBAL || mode > MODE_RELAXED)
        return call(stream ? INVALID_VALUE : INVALID_HANDLE);
    if (stream->legacy) // cannot be captured
        return call(CAPTURE_UNSUPPORTED);
    if (stream->capture)
        return call(ILLEGAL_STATE);
    auto capture = std::make_shared<Capture>();
    capture->id = next_capture++;
    capture->mode = mode;
    capture->thread = this_thread();
    capture->origin = stream;
    capture->streams.insert(stream);
    graphs.add(capture->graph);
    captures.insert(capture);
    stream->capture = capture;
    stream->tips.clear();
    return call();
}

API cuStreamEndCapture(void *handle, void **out)
{
    Call call("cuStreamEndCapture", CONTEXT, "%p", handle);
    auto stream = stream_of(handle);
    *out = nullptr;
    if (!call || !stream)
        return call(INVALID_HANDLE);
    auto capture = stream->capture;
    if (!capture)
        return call(ILLEGAL_STATE);
    if (capture->origin != stream) {
        invalidate(*capture);
        return call(CAPTURE_UNMATCHED);
    }
    if (capture->mode != MODE_RELAXED && capture->thread != this_thread()) {
        invalidate(*capture);
        return call(CAPTURE_WRONG_THREAD);
    }
    int result = capture->invalid ? CAPTURE_INVALIDATED : SUCCESS;
    for (const auto &other : capture->streams)
        if (result == SUCCESS && !reachable(*capture->graph, stream->tips, other->tips))
            result = CAPTURE_UNJOINED;
    for (const auto &other : capture->streams) {
        other->capture = nullptr;
        other->tips.clear();
    }
    capture->streams.clear();
    capture->ended = true;
    captures.erase(capture);
    if (result == SUCCESS)
        *out = capture->graph.get();
    else
        graphs.all.erase(capture->graph.get());
    capture->graph = nullptr;
    return call(result);
}

API cuStreamIsCapturing(void *handle, int *out)
{
    Call call("cuStreamIsCapturing", CONTEXT | UNLOGGED);
    auto stream = stream_of(handle);
    if (!call || !stream)
        return call(INVALID_HANDLE);
    *out = status(*stream);
    return call(legacy_unusable(*stream));
}

API cuStreamGetCaptureInfo_v2(void *handle, int *out, uint64_t *id, void **graph, void *nodes,
                              size_t *n)
{
    Call call("cuStreamGetCaptureInfo", CONTEXT | UNLOGGED);
    auto stream = stream_of(handle);
    if (!call || !stream)
        return call(INVALID_HANDLE);
    if (nodes || n)
        return call(NOT_SUPPORTED);
    *out = status(*stream);
    if (*out == 1 && id)
        *id = stream->capture->id;
    if (*out == 1 && graph)
        *graph = stream->capture->graph.get();
    return call(legacy_unusable(*stream));
}

API cuGraphInstantiateWithFlags(void **out, void *handle, unsigned long long flags)
{
    Call call("cuGraphInstantiate", CONTEXT, "%p", handle);
    auto graph = graphs.find(handle);
    if (!call || !graph || flags)
        return call(INVALID_VALUE);
    auto executable = std::make_shared<Executable>();
    executable->graph = *graph;
    *out = executables.add(executable);
    return call();
}

API cuGraphLaunch(void *handle, void *in)
{
    Call call("cuGraphLaunch", CONTEXT, "%p, %p", handle, in);
    auto executable = executables.find(handle);
    auto stream = stream_of(in);
    if (!call || !executable || !stream)
        return call(executable ? INVALID_HANDLE : INVALID_VALUE);
    if (stream->capture) // a graph within a graph: nobody needs it here
        return invalidate(*stream->capture), call(NOT_SUPPORTED);
    // After what the stream has before it, and after this graph's launches before.
    int result
        = enqueue(stream, [executable] { return run(executable->graph); }, {executable->last});
    if (result == SUCCESS)
        executable->last = {stream, stream->submitted};
    return call(result);
}

API cuGraphDestroy(void *handle)
{
    Call call("cuGraphDestroy", CONTEXT, "%p", handle);
    if (!call || !graphs.find(handle))
        return call(INVALID_VALUE);
    graphs.all.erase(handle);
    return call();
}

API cuGraphExecDestroy(void *handle)
{
    Call call("cuGraphExecDestroy", CONTEXT, "%p", handle);
    if (!call || !executables.find(handle))
        return call(INVALID_VALUE);
    executables.all.erase(handle); // one that runs lives until it has ended
    return call();
}

API cuUserObjectCreate(void **out, void *at, void (*destroy)(void *), unsigned n, unsigned flags)
{
    Call call("cuUserObjectCreate", INITIALIZED, "%u", n);
    if (!call || !destroy || !n || n > INT32_MAX || flags != 1) // NO_DESTRUCTOR_SYNC is required
        return call(INVALID_VALUE);
    *out = users.add(std::make_shared<User>(User{at, destroy, n}));
    return call();
}

API cuUserObjectRelease(void *handle, unsigned n)
{
    Call call("cuUserObjectRelease", INITIALIZED, "%u", n);
    auto user = users.find(handle);
    if (!call || !user || !n || n > user->references)
        return call(INVALID_VALUE);
    release(user, n);
    return call();
}

// With flag 1 (MOVE) the caller's references become the graph's.
API cuGraphRetainUserObject(void *handle, void *object, unsigned n, unsigned flags)
{
    Call call("cuGraphRetainUserObject", INITIALIZED, "%u, %u", n, flags);
    auto graph = graphs.find(handle);
    auto user = users.find(object);
    if (!call || !graph || !user || !n || n > INT32_MAX || flags > 1
        || (flags == 1 && n > user->references))
        return call(INVALID_VALUE);
    if (!flags)
        user->references += n;
    graph->holds.push_back(std::make_shared<Hold>(user, n));
    return call();
}
