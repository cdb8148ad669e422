/* Generated from pycoll/program/isa.py by `make isa`; do not edit. */
#ifndef PC_ISA_H
#define PC_ISA_H
#include <stdint.h>

#define PC_MAGIC 1280262992u
#define PC_VERSION 2u
#define PC_MAX_SOURCES 8u
#define PC_MAX_DESTINATIONS 8u
#define PC_HOST_DESTINATIONS 2u
#define PC_MAX_CHANNELS 4u
#define PC_MAX_RANKS 1048576u
#define PC_CHUNK_UNIT 64u

enum pc_opcode { PC_OP_END = 0, PC_OP_REDUCE_COPY = 1, PC_OP_SIGNAL = 2, PC_OP_WAIT = 3, PC_OP_LOOP = 4, PC_OP_END_LOOP = 5 };

enum pc_instruction_flag { PC_FLAG_SCALE = 1 };

enum pc_space { PC_SPACE_IN = 0, PC_SPACE_OUT = 1, PC_SPACE_SCRATCH = 2, PC_SPACE_SLOT = 3, PC_SPACE_PEER_IN = 4, PC_SPACE_PEER_OUT = 5 };

enum pc_edge_kind { PC_EDGE_DATA = 0, PC_EDGE_LOCAL = 1, PC_EDGE_DONE = 2 };

enum pc_direction { PC_DIRECTION_SEND = 0, PC_DIRECTION_RECV = 1 };

enum pc_program_flag { PC_PROGRAM_DIRECT = 1 };

enum pc_reduce_op { PC_REDUCE_SUM = 0, PC_REDUCE_PROD = 1, PC_REDUCE_MIN = 2, PC_REDUCE_MAX = 3, PC_REDUCE_AVG = 4 };

enum pc_dtype { PC_DTYPE_FLOAT64 = 0, PC_DTYPE_FLOAT32 = 1, PC_DTYPE_FLOAT16 = 2, PC_DTYPE_BFLOAT16 = 3, PC_DTYPE_INT8 = 4, PC_DTYPE_UINT8 = 5, PC_DTYPE_INT32 = 6, PC_DTYPE_UINT32 = 7, PC_DTYPE_INT64 = 8, PC_DTYPE_UINT64 = 9, PC_DTYPE_BOOL = 10, PC_DTYPE_INT16 = 11, PC_DTYPE_UINT16 = 12, PC_DTYPE_COMPLEX64 = 13, PC_DTYPE_COMPLEX128 = 14, PC_DTYPE_FLOAT8_E4M3FN = 15, PC_DTYPE_FLOAT8_E5M2 = 16, PC_DTYPE_FLOAT8_E4M3FNUZ = 17, PC_DTYPE_FLOAT8_E5M2FNUZ = 18, PC_DTYPE_FLOAT8_E8M0FNU = 19 };
#define PC_NDTYPES 10u /* that are reduced; those behind are moved only */
#define PC_NNAMED 20u
#define PC_DTYPE_NAMES { "float64", "float32", "float16", "bfloat16", "int8", "uint8", "int32", "uint32", "int64", "uint64", "bool", "int16", "uint16", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu" }
#define PC_DTYPE_BYTES { 8, 4, 2, 2, 1, 1, 4, 4, 8, 8, 1, 2, 2, 8, 16, 1, 1, 1, 1, 1 }
#define PC_DTYPE_LOG2_BYTES { 3, 2, 1, 1, 0, 0, 2, 2, 3, 3 } /* of those that are reduced */
#define PC_NREDUCE 5u
#define PC_REDUCE_NAMES { "sum", "prod", "min", "max", "avg" }

struct pc_header {
    uint32_t magic;
    uint16_t version;
    uint16_t flags;
    uint64_t digest;
    uint32_t rank;
    uint32_t size;
    uint32_t nchunks;
    uint32_t nscratch;
    uint32_t widest;
    uint32_t nchannels;
    uint32_t nedges;
    uint32_t ninstructions;
    uint32_t noperands;
    uint32_t reserved;
};
_Static_assert(sizeof(struct pc_header) == 56, "pc_header is 56 bytes");

struct pc_edge {
    uint32_t peer;
    uint8_t kind;
    uint8_t direction;
    uint8_t channel;
    uint8_t other;
};
_Static_assert(sizeof(struct pc_edge) == 8, "pc_edge is 8 bytes");

struct pc_instruction {
    uint8_t op;
    uint8_t flags;
    uint8_t nsrc;
    uint8_t ndst;
    uint32_t edge;
    uint32_t operand;
    uint32_t target;
};
_Static_assert(sizeof(struct pc_instruction) == 16, "pc_instruction is 16 bytes");

struct pc_operand {
    uint32_t space;
    uint32_t edge;
    uint32_t place;
    uint32_t chunk;
    uint32_t nchunks;
};
_Static_assert(sizeof(struct pc_operand) == 20, "pc_operand is 20 bytes");

#endif
