//! QEMU's `virt` board, entered at exception level 1.

// A table of GiB blocks: devices in the first, memory in the second. Memory is Normal, so that
// unaligned and exclusive accesses are defined on real boards too.
core::arch::global_asm!(
    r#"
.section .text._start,"ax"
.global _start
_start:
    adrp x0, __bss_start
    add  x0, x0, :lo12:__bss_start
    adrp x1, __bss_end
    add  x1, x1, :lo12:__bss_end
1:  cmp  x0, x1
    b.hs 2f
    str  xzr, [x0], #8
    b    1b
2:  adrp x0, __stack_top
    add  x0, x0, :lo12:__stack_top
    mov  sp, x0
    bl   set_up
    bl   begin

// A further core: its stack's top comes in x0.
.global _further
_further:
    mov  sp, x0
    bl   set_up
    bl   further
3:  wfe
    b    3b

set_up:
    mrs  x0, CPACR_EL1
    orr  x0, x0, #(3 << 20)         // floats and vectors
    msr  CPACR_EL1, x0
    mov  x0, #0xff00                // attribute 0: device, 1: normal, write-back
    msr  MAIR_EL1, x0
    ldr  x0, =0x280803519           // 39 bits, 4 KiB, cached walks, inner shareable; 40 bits out
    msr  TCR_EL1, x0
    adrp x0, blocks
    add  x0, x0, :lo12:blocks
    msr  TTBR0_EL1, x0
    dsb  sy
    isb
    tlbi vmalle1
    dsb  sy
    isb
    mrs  x0, SCTLR_EL1
    ldr  x1, =0x1005                // translation, data and instruction caches
    orr  x0, x0, x1
    msr  SCTLR_EL1, x0
    isb
    ret
.ltorg

.section .rodata.blocks,"a"
.align 12
blocks:
    .quad 0x0060000000000401        // device, never executed
    .quad 0x0000000040000705        // normal, inner shareable
    .skip 4096 - 16
"#
);

// SAFETY: the entry point above and the linker script define them; only addresses are taken.
unsafe extern "C" {
    fn _further();
    static __further_top: u8;
}

/// A PL011.
pub const UART: usize = 0x0900_0000;
/// Where QEMU's loader puts an image in memory.
pub const IMAGE: usize = 0x4800_0000;
/// Registers of the virtio devices: the first, the distance, how many.
pub const VIRTIO: (usize, usize, usize) = (0x0a00_0000, 0x200, 32);
/// Of the generic timer.
pub const CLOCK_HZ: u64 = 62_500_000;
/// Stack of a further core.
const FURTHER_STACK_BYTES: usize = 64 << 10;
/// PSCI: switch a core on.
const CPU_ON: usize = 0xC400_0003;

/// Switches core `core` on, if there is one.
pub fn start(core: usize) {
    let top = (&raw const __further_top).addr() - (core - 1) * FURTHER_STACK_BYTES;
    let entry = _further as *const () as usize;
    // SAFETY: the firmware interface of the machine; the core gets a stack of its own.
    unsafe {
        core::arch::asm!("hvc #0", inlateout("x0") CPU_ON => _, inlateout("x1") core => _,
            inlateout("x2") entry => _, inlateout("x3") top => _, options(nostack));
    }
}
