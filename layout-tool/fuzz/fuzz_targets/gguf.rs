//! Bytes of a GGUF file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| layout_tool::source::gguf::check(bytes));
