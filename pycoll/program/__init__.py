"""Programs: the instruction set, lowering, disassembly and the reference interpreter."""
