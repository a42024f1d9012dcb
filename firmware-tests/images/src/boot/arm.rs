//! Arm's MPS2+ with the image AN505: a Cortex-M33 in its secure state.

core::arch::global_asm!(
    r#"
.section .vectors,"a"
.word __stack_top
.word _start
.word _fault
.word _fault

.section .text._start,"ax"
.thumb_func
.global _start
_start:
    ldr  r0, =0xE000ED88            // CPACR: floats
    ldr  r1, [r0]
    orr  r1, r1, #(0xf << 20)
    str  r1, [r0]
    dsb
    isb
    ldr  r0, =__data_start
    ldr  r1, =__data_end
    ldr  r2, =__data_load
1:  cmp  r0, r1
    bhs  2f
    ldr  r3, [r2], #4
    str  r3, [r0], #4
    b    1b
2:  ldr  r0, =__bss_start
    ldr  r1, =__bss_end
    movs r2, #0
3:  cmp  r0, r1
    bhs  4f
    str  r2, [r0], #4
    b    3b
4:  ldr  r0, =0x50000000            // timer 0: down from 2^32 - 1, and again
    mov  r1, #0xffffffff
    str  r1, [r0, #8]
    str  r1, [r0, #4]
    movs r1, #1
    str  r1, [r0]
    bl   begin
.thumb_func
_fault:
    b    faulted
.ltorg
"#
);

/// A CMSDK UART, as the secure state sees it.
pub const UART: usize = 0x5020_0000;
/// Where QEMU's loader puts an image in memory: 16 MiB of PSRAM.
pub const IMAGE: usize = 0x8000_0000;
/// The count of timer 0.
pub const TIMER: usize = 0x5000_0004;
/// Of that timer.
pub const CLOCK_HZ: u64 = 20_000_000;

/// There is one core.
pub fn start(_core: usize) {}

// SAFETY: nothing else has this name.
#[unsafe(no_mangle)]
extern "C" fn faulted() -> ! {
    panic!("a fault")
}
