//! Sizes of the sections of an ELF file of 32 or 64 bits, little-endian.

/// Bytes of an image by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sizes {
    /// Code and constants.
    pub text: u64,
    /// Variables that begin with a value.
    pub data: u64,
    /// Variables that begin with zero; stacks not counted.
    pub bss: u64,
}

/// Section flags: in memory, writable.
const ALLOC: u64 = 2;
const WRITE: u64 = 1;
/// Section kind: takes no bytes in the file.
const NOBITS: u64 = 8;

/// A little-endian number of `bytes` bytes at `at`.
fn number(file: &[u8], at: usize, bytes: usize) -> u64 {
    file[at..at + bytes]
        .iter()
        .rev()
        .fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Sizes of the image `file`.
///
/// # Panics
/// If it is no such file.
pub fn sizes(file: &[u8]) -> Sizes {
    assert!(
        file.starts_with(b"\x7fELF") && file[5] == 1,
        "no little-endian ELF file"
    );
    let wide = file[4] == 2;
    let word = if wide { 8 } else { 4 };
    let (table_at, entry_at) = if wide { (0x28, 0x3a) } else { (0x20, 0x2e) };
    let table = number(file, table_at, word) as usize;
    let entry_bytes = number(file, entry_at, 2) as usize;
    let (count, names) = (number(file, entry_at + 2, 2), number(file, entry_at + 4, 2));
    // Of a section: name, kind, flags, address, offset, size.
    let field = |index: u64, words: usize| {
        let at = table + index as usize * entry_bytes + 8 + words * word;
        number(file, at, word)
    };
    let names = field(names, 2) as usize;
    let mut sizes = Sizes::default();
    for index in 0..count {
        let at = table + index as usize * entry_bytes;
        let name = &file[names + number(file, at, 4) as usize..];
        let (kind, flags, bytes) = (number(file, at + 4, 4), field(index, 0), field(index, 3));
        if flags & ALLOC == 0 || name.starts_with(b".stack\0") {
            continue;
        }
        match (kind == NOBITS, flags & WRITE != 0) {
            (true, _) => sizes.bss += bytes,
            (false, true) => sizes.data += bytes,
            (false, false) => sizes.text += bytes,
        }
    }
    sizes
}
