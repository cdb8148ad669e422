// Modules, how many blocks of a function fit a multiprocessor, and launches.
//
// A module may be anything: its functions are the kernels that are built in (kernels.cpp,
// collectives.cpp), by name. One that begins with the word fakecuda is text, with a line for each
// function of its own: name, like=<kernel>, registers=, shared=, threads=.
#include "driver.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

using namespace fake;

struct Function {
    std::string name;
    const Entry *entry;
    int registers, shared, threads, dynamic = SHARED_PER_BLOCK;
    bool loaded = false;
};

struct Module {
    int device;
    std::map<std::string, Function> functions;
};
static Handles<Module> &modules = *new Handles<Module>;
static std::set<void *> &functions = *new std::set<void *>; // of modules that are loaded

static int up(int n, int unit)
{
    return (n + unit - 1) / unit * unit;
}

static int warps(int threads)
{
    return (threads + WARP - 1) / WARP;
}

// Blocks of a multiprocessor. Registers are given to whole warps, each within one of the four
// partitions; shared memory to blocks, with what the system keeps for each.
static int resident(const Function &f, int threads, size_t dynamic)
{
    int per_warp = up(f.registers * WARP, REGISTERS_UNIT), per_block = warps(threads);
    int by_registers = REGISTERS / PARTITIONS / per_warp * PARTITIONS / per_block;
    int by_threads = THREADS_PER_MULTIPROCESSOR / WARP / per_block;
    int shared = up(f.shared + (int)dynamic + SHARED_RESERVED, SHARED_UNIT);
    int by_shared = SHARED / shared;
    int blocks = BLOCKS_PER_MULTIPROCESSOR;
    for (int limit : {by_registers, by_threads, by_shared})
        blocks = limit < blocks ? limit : blocks;
    return threads > f.threads || f.shared + (int)dynamic > SHARED_OPTIN ? 0 : blocks;
}

// With CUDA_MODULE_LOADING=EAGER a module's functions are loaded with it. Else, as with LAZY, which
// is the default, each is when its attributes are first asked for, or at its first launch.
static bool eager()
{
    const char *set = getenv("CUDA_MODULE_LOADING");
    return set && strcmp(set, "EAGER") == 0;
}

static int load(Call &call, Function *f)
{
    if (f->loaded || eager())
        return SUCCESS;
    f->loaded = true;
    return call.settle(current_device());
}

API cuModuleLoadData(void **out, const char *image)
{
    Call call("cuModuleLoadData", CONTEXT | UNSAFE);
    if (!call || !image)
        return call(INVALID_VALUE);
    if (int result = call.settle(current_device()))
        return call(result);
    auto module = std::make_shared<Module>();
    module->device = current_device();
    for (auto &[name, entry] : entries())
        module->functions[name] = {name, &entry, entry.registers, entry.shared, THREADS_PER_BLOCK};
    if (strncmp(image, "fakecuda\n", 9) == 0) {
        std::istringstream lines(image + 9);
        for (std::string line, name, word; std::getline(lines, line);) {
            std::istringstream words(line);
            words >> name;
            Function f = module->functions["fakecuda_busy"];
            f.name = name;
            for (int n; words >> word;) {
                char like[64] = "";
                if (sscanf(word.c_str(), "like=%63s", like) == 1 && entries().count(like))
                    f.entry = &entries()[like];
                else if (sscanf(word.c_str(), "registers=%d", &n) == 1)
                    f.registers = n;
                else if (sscanf(word.c_str(), "shared=%d", &n) == 1)
                    f.shared = n;
                else if (sscanf(word.c_str(), "threads=%d", &n) == 1)
                    f.threads = n;
                else
                    return call(INVALID_VALUE);
            }
            module->functions[name] = f;
        }
    }
    *out = modules.add(module);
    return call();
}

API cuModuleUnload(void *handle)
{
    Call call("cuModuleUnload", CONTEXT | UNSAFE, "%p", handle);
    auto module = modules.find(handle);
    if (!call || !module)
        return call(INVALID_HANDLE);
    if (int result = call.settle(module->device))
        return call(result);
    for (auto &[name, function] : module->functions)
        functions.erase(&function);
    modules.all.erase(handle);
    return call();
}

API cuModuleGetFunction(void **out, void *handle, const char *name)
{
    Call call("cuModuleGetFunction", CONTEXT, "%s", name);
    auto module = modules.find(handle);
    if (!call || !module)
        return call(INVALID_HANDLE);
    auto found = module->functions.find(name);
    if (found == module->functions.end())
        return call(NOT_FOUND);
    functions.insert(&found->second);
    *out = &found->second;
    return call();
}

static Function *function(void *handle)
{
    return functions.count(handle) ? (Function *)handle : nullptr;
}

API cuFuncGetAttribute(int *out, int which, void *handle)
{
    Call call("cuFuncGetAttribute", CONTEXT | UNLOGGED);
    Function *f = function(handle);
    if (!call || !f)
        return call(INVALID_HANDLE);
    if (int result = load(call, f))
        return call(result);
    switch (which) {
    case 0:
        *out = f->threads;
        return call();
    case 1:
        *out = f->shared;
        return call();
    case 3: // local memory
        *out = 0;
        return call();
    case 4:
        *out = f->registers;
        return call();
    case 8:
        *out = f->dynamic;
        return call();
    default:
        return call(INVALID_VALUE);
    }
}

// More dynamic shared memory than 48 KiB has to be asked for, and static and dynamic together are
// at most what a block can have.
API cuFuncSetAttribute(void *handle, int which, int value)
{
    Call call("cuFuncSetAttribute", CONTEXT, "%p, %d, %d", handle, which, value);
    Function *f = function(handle);
    if (!call || !f)
        return call(INVALID_HANDLE);
    if (which == 9 && value >= -1 && value <= 100) // a hint, in percent
        return call();
    if (which != 8 || value < 0 || f->shared + value > SHARED_OPTIN)
        return call(INVALID_VALUE);
    f->dynamic = value;
    return call();
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, void *handle, int threads, size_t dynamic)
{
    Call call("cuOccupancyMaxActiveBlocksPerMultiprocessor", CONTEXT | UNLOGGED);
    const Function *f = function(handle);
    if (!call || !f)
        return call(INVALID_HANDLE);
    if (threads < 1 || threads > THREADS_PER_BLOCK)
        return call(INVALID_VALUE);
    *out = resident(*f, threads, dynamic);
    return call();
}

API cuOccupancyAvailableDynamicSMemPerBlock(size_t *out, void *handle, int blocks, int threads)
{
    Call call("cuOccupancyAvailableDynamicSMemPerBlock", CONTEXT | UNLOGGED);
    const Function *f = function(handle);
    if (!call || !f)
        return call(INVALID_HANDLE);
    if (threads < 1 || threads > THREADS_PER_BLOCK || blocks < 1
        || blocks > resident(*f, threads, 0))
        return call(INVALID_VALUE);
    int each = SHARED / blocks / SHARED_UNIT * SHARED_UNIT - SHARED_RESERVED - f->shared;
    int most = SHARED_OPTIN - f->shared;
    *out = (size_t)(each < most ? each : most);
    return call();
}

struct Attribute { // as CUlaunchAttribute
    int id;
    char padding[4];
    union {
        char bytes[64];
        int number;
    } value;
};

struct Config { // as CUlaunchConfig
    unsigned blocks[3], threads[3], shared;
    void *stream;
    const Attribute *attributes;
    unsigned nattributes;
};
static_assert(sizeof(Attribute) == 72 && sizeof(Config) == 56, "as the driver's");

static int admitted(const Config &config, const Function &f, std::string &described)
{
    unsigned threads = config.threads[0] * config.threads[1] * config.threads[2];
    size_t blocks = (size_t)config.blocks[0] * config.blocks[1] * config.blocks[2];
    if (!blocks || !threads || threads > (unsigned)option("THREADS", 4)
        || config.shared > (unsigned)f.dynamic)
        return INVALID_VALUE;
    if (threads > (unsigned)f.threads || !resident(f, (int)threads, config.shared))
        return LAUNCH_OUT_OF_RESOURCES;
    for (unsigned i = 0; i < config.nattributes; i++) {
        const Attribute &a = config.attributes[i];
        if (a.id == 2) { // all blocks at once, or not at all
            described += ", cooperative";
            if (a.value.number
                && blocks > (size_t)resident(f, (int)threads, config.shared) * MULTIPROCESSORS)
                return COOPERATIVE_LAUNCH_TOO_LARGE;
        } else if (a.id == 8) {
            described += ", priority " + std::to_string(a.value.number);
        } else if (a.id == 10 && (a.value.number == 0 || a.value.number == 1)) {
            described += a.value.number ? ", remote" : "";
        } else {
            return INVALID_VALUE;
        }
    }
    return SUCCESS;
}

API cuLaunchKernelEx(const Config *config, void *handle, void **arguments, void **extra)
{
    std::string described;
    char what[160];
    Function *f = nullptr;
    int result = SUCCESS;
    {
        std::lock_guard held(lock);
        f = function(handle);
        result = f ? admitted(*config, *f, described) : (int)INVALID_HANDLE;
        auto on = streams.find(config->stream);
        if (on && on->green)
            described += ", " + std::to_string(on->green->sms.size()) + " SMs";
        snprintf(what, sizeof what, "%s, %ux%ux%u, %u, %u, %p%s", f ? f->name.c_str() : "?",
                 config->blocks[0], config->blocks[1], config->blocks[2], config->threads[0],
                 config->shared, config->stream, described.c_str());
    }
    Call call("cuLaunchKernelEx", CONTEXT, "%s", what);
    auto stream = stream_of(config->stream);
    if (!call || result != SUCCESS || extra)
        return call(result != SUCCESS ? result : NOT_SUPPORTED);
    if (!stream || stream->device != current_device())
        return call(INVALID_HANDLE);
    if (int late = stream->capture ? SUCCESS : load(call, f))
        return call(late);
    // The arguments are read now: the caller's may be gone when the kernel runs.
    auto values = std::make_shared<std::vector<std::vector<char>>>();
    for (uint32_t i = 0; i < f->entry->arguments.size(); i++) {
        const char *value = arguments ? (const char *)arguments[i] : nullptr;
        if (!value)
            return call(INVALID_VALUE);
        values->emplace_back(value, value + f->entry->arguments[i]);
    }
    Grid grid = {{config->blocks[0], config->blocks[1], config->blocks[2]},
                 config->threads[0] * config->threads[1] * config->threads[2]};
    BlockNeeds block = {
        warps((int)grid.threads),
        warps((int)grid.threads) * up(f->registers * WARP, REGISTERS_UNIT),
        up(f->shared + (int)config->shared + SHARED_RESERVED, SHARED_UNIT),
        resident(*f, (int)grid.threads, config->shared),
    };
    auto place = [=, sms = multiprocessors(*stream), device = stream->device, name = f->name] {
        size_t blocks = (size_t)grid.blocks[0] * grid.blocks[1] * grid.blocks[2];
        return Places(device, sms, block, blocks, name.c_str());
    };
    return call(enqueue(stream, [entry = f->entry, values, grid, place] {
        int given = SUCCESS;
        {
            std::lock_guard held(lock);
            if (fails("kernel", &given))
                return given == OUT_OF_MEMORY ? (int)LAUNCH_FAILED : given;
        }
        std::vector<void *> at;
        for (auto &value : *values)
            at.push_back(value.data());
        Places held = place();
        entry->run(at.data(), grid);
        return (int)SUCCESS;
    }));
}
