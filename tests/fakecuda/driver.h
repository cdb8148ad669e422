// The stand-in for libcuda.so.1: what its parts share. fakecuda.py says what it is for.
//
// One lock guards everything but the work of streams, and one condition tells of every change: this
// is a stand-in, made to be read.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <sys/types.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int

enum { // CUresult
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    MAP_FAILED_HERE = 205,
    ALREADY_MAPPED = 208,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_TIMEOUT = 702,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    CONTEXT_IS_DESTROYED = 709,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
    INVALID_RESOURCE_TYPE = 914,
    INVALID_RESOURCE_CONFIGURATION = 915,
};

// Of sm_90, as NVIDIA's tables of compute capabilities have them.
enum {
    MULTIPROCESSORS = 132,
    THREADS_PER_MULTIPROCESSOR = 2048,
    BLOCKS_PER_MULTIPROCESSOR = 32,
    WARP = 32,
    REGISTERS = 65536,           // of a multiprocessor, and of a block
    REGISTERS_UNIT = 256,        // of a warp: so many at once
    PARTITIONS = 4,              // of a multiprocessor: a warp and its registers lie in one
    SHARED = 228 << 10,          // of a multiprocessor
    SHARED_RESERVED = 1 << 10,   // of that, for each block, by the system
    SHARED_OPTIN = 227 << 10,    // of a block, at most
    SHARED_PER_BLOCK = 48 << 10, // of a block that has not asked for more
    SHARED_UNIT = 128,
    THREADS_PER_BLOCK = 1024, // of a function that says nothing else
    LEAST_PRIORITY = 0,
    GREATEST_PRIORITY = -5,
};

namespace fake
{

extern std::mutex &lock;
extern std::condition_variable &changed;

struct Stream;
struct Capture;

// A place in a stream's order: reached once so much of its work is done.
struct Ticket {
    std::shared_ptr<Stream> stream;
    uint64_t number = 0;
    bool reached() const;
};

// What a stream does, outside the lock. Its result, unless it is SUCCESS, poisons the context.
using Work = std::function<int()>;

enum { STREAM_NON_BLOCKING = 1 };

// A green context: the primary context of its device, with a part of the multiprocessors.
struct Green {
    int device = 0;
    std::set<unsigned> sms;
    bool ended = false;
    char context = 0; // its address is the handle that cuCtxFromGreenCtx gives
};

struct Stream {
    int device = 0;
    unsigned flags = 0;
    int priority = 0;
    bool legacy = false, ended = false, running = false;
    struct Item {
        Work work;
        std::vector<Ticket> after;
    };
    std::deque<Item> queue; // from `completed` on
    uint64_t submitted = 0, completed = 0;
    std::shared_ptr<Capture> capture;
    std::set<int> tips;           // nodes that the next one comes after
    std::shared_ptr<Green> green; // or none
};

// References to user objects, given up with the last copy of this.
struct Hold;

struct Graph {
    struct Node {
        Work work;
        std::set<int> after;
    };
    std::vector<Node> nodes;
    std::vector<std::shared_ptr<Hold>> holds;
};

struct Capture {
    uint64_t id = 0;
    int mode = 0;
    bool invalid = false, ended = false;
    uint64_t thread = 0;
    std::shared_ptr<Stream> origin;
    std::set<std::shared_ptr<Stream>> streams;
    std::shared_ptr<Graph> graph = std::make_shared<Graph>();
};

// Handles that are valid, by their address.
template <class T> struct Handles {
    std::map<void *, std::shared_ptr<T>> all;
    void *add(std::shared_ptr<T> what)
    {
        return (all[what.get()] = what).get();
    }
    std::shared_ptr<T> find(void *handle) const
    {
        auto found = all.find(handle);
        return found == all.end() ? nullptr : found->second;
    }
};
extern Handles<Stream> &streams;
extern std::set<std::shared_ptr<Capture>> &captures; // those under way

// Waits for all that a device has been given so far, as the driver may when memory or code comes or
// goes. A kernel that waits for what the caller would do next never ends: after FAKECUDA_PATIENCE
// seconds that is noted, and the call gives LAUNCH_TIMEOUT. Takes no other state along: the lock is
// given up meanwhile.
int settle(std::unique_lock<std::mutex> &held, int device, const char *who);

// One call of the API: takes the lock, finds out whether it is refused before it begins, and writes
// it to the log when its result is known.
enum Needs {
    NOTHING = 0,
    INITIALIZED = 1,
    CONTEXT = 3, // a current one
    UNSAFE = 8,  // what captures forbid, see cuThreadExchangeStreamCaptureMode
    UNLOGGED = 16,
};
class Call
{
  public:
    Call(const char *name, int needs, const char *format = "", ...)
        __attribute__((format(printf, 4, 5)));
    explicit operator bool() const // whether it goes on
    {
        return refused == SUCCESS;
    }
    int operator()(int result = SUCCESS); // ends it
    void wait(const std::function<bool()> &until)
    {
        changed.wait(held, until);
    }
    int settle(int device)
    {
        return refused ? refused : fake::settle(held, device, name);
    }
    std::unique_lock<std::mutex> held;

  private:
    const char *name;
    bool logged;
    char arguments[160];
    int refused = SUCCESS;
};

void note(const char *format, ...) __attribute__((format(printf, 1, 2))); // into the log
int option(const char *name, int fallback);                               // FAKECUDA_<name>
bool fails(const char *name, int *result); // whether the test wants this one to fail
int current_device();                      // of the current context, or -1
bool initialized();                        // in this process
std::shared_ptr<Green> current_green();    // or none
uint64_t this_thread();
extern thread_local bool orphan; // this call was given a stream whose green context is gone
int devices();
int physical_device(int device);     // its number on the machine
void poison(int device, int result); // every later call of the context gives this
int poisoned_now(int device);

// Streams. With the lock held.
std::shared_ptr<Stream> stream_of(void *handle); // or nullptr
void *new_stream(int device, unsigned flags, int priority, std::shared_ptr<Green> green);
std::shared_ptr<Green> green_of(void *context); // by the handle of a converted one, or nullptr
std::set<unsigned> multiprocessors(const Stream &stream);
int enqueue(const std::shared_ptr<Stream> &stream, Work work, std::vector<Ticket> after = {});
bool idle(int device); // no stream of it has work
int forbidden();       // what a potentially unsafe call gets now; invalidates the captures
void invalidate(Capture &capture);
int run(const Graph &graph); // without the lock: the nodes in their order, as concurrent as can be

// Memory. With the lock held.
void work_begins(); // of a stream
void work_ends();
bool known(uint64_t address, size_t nbytes, bool device_only);
bool device_memory(uint64_t address, size_t nbytes); // whether any of it is a device's
struct Part {                                        // of an allocation of cuMemAlloc
    int fd, device;                                  // of the memory; the number on the machine
    ino_t inode;
    uint64_t begin, nbytes; // in the memory
};
bool part_of(uint64_t address, size_t nbytes, Part *out); // false: it is not all of one
bool charge(int device, int64_t nbytes);                  // false: the device has not so much left
uint64_t reserve(size_t nbytes, size_t alignment);        // addresses with nothing there; 0: none
void unreserve(uint64_t at);
bool occupy(uint64_t at, size_t nbytes, int fd, int device); // maps memory at reserved addresses
void leave(uint64_t at);                                     // and takes it away
void fail_if_registered(uint64_t at, int fd);                // peer.cpp: by a stand-in for a NIC
void fail_if_pinned(uint64_t at, int fd); // by a driver; nothing maps it any more
void pass_guard();                        // this thread is the device's: see fakecuda_guard

// Kernels. `run` plays a whole launch: all its blocks at once, each of their threads a thread.
struct Grid {
    uint32_t blocks[3];
    uint32_t threads;
};
struct Entry {
    std::vector<uint32_t> arguments; // bytes of each
    int registers, shared;           // what it says of itself; a module may say otherwise
    void (*run)(void *const *arguments, const Grid &grid);
};
std::map<std::string, Entry> &entries(); // by name; filled before main
struct Kernel {
    Kernel(const char *name, Entry entry)
    {
        entries()[name] = entry;
    }
};

// The room that a kernel's blocks take while this lives: waits for it, with the option PLACES.
struct BlockNeeds {
    int warps, registers, shared;
    int resident; // of a multiprocessor with nothing else on it
};
class Places
{
  public:
    Places(int device, const std::set<unsigned> &sms, const BlockNeeds &block, size_t blocks,
           const char *name);
    Places(const Places &) = delete;
    ~Places();

  private:
    bool find(const std::set<unsigned> &sms, size_t wanted);
    void leave();
    int device;
    BlockNeeds block;
    std::vector<unsigned> at; // the multiprocessor of each block
};
void together(uint32_t n, const std::function<void(uint32_t)> &part); // and waits for all

} // namespace fake
