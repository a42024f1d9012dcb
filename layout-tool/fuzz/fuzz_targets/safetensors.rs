//! Bytes of a safetensors file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| layout_tool::source::hf::check(bytes));
