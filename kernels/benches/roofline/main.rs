//! What each kernel of each table reaches, beside the machine's own ceilings.
//!
//! `cargo bench -p tessera-kernels --features std [-- WORD...]` prints the lines that contain all
//! words (of table, kernel, type, shape). Weights are larger than the caches, so that `matvec`,
//! `down_group` and `neurons` show memory (with the word `cached` they are small: arithmetic);
//! `matmul` and `down_group_many` take 128 tokens, those with `few` 4. Numbers are medians of five
//! runs. `read` is what a plain loop reads, measured again with each line; `peak` is what the
//! table's multiply-adds reach in registers; the last column is the share of the nearer of both.
//! Kernels on floats work in the first cache: `read` is what a plain loop reads there, and instead
//! of multiply-adds operations are counted. Time is what a thread had of its core, where Linux
//! tells.

use tessera_kernels::{Kernels, WeightType};

mod attend;
mod memory;
mod neurons;
mod products;
mod roofs;
mod small;

use memory::Memory;
use roofs::Roofs;

const TYPES: [WeightType; 6] = [
    WeightType::Q4O,
    WeightType::Q4,
    WeightType::Q8,
    WeightType::Q6,
    WeightType::Q5,
    WeightType::Q4K,
];
const TOKENS: usize = 128;
/// Tokens of `matmul_few` and `down_group_few`.
const FEW: usize = 4;
/// Weights of one thread: four times a usual L3.
const WEIGHT_BYTES: usize = 128 << 20;
/// Those of `cached`: half of a usual L2.
const CACHED_BYTES: usize = 400 << 10;
const RUNS: usize = 5;
const RUN_SECONDS: f64 = 0.06;

fn main() {
    if with_huge_pages() {
        return;
    }
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let (cached, words): (Vec<String>, Vec<String>) =
        words.into_iter().partition(|word| word == "cached");
    let bytes = if cached.is_empty() {
        WEIGHT_BYTES
    } else {
        CACHED_BYTES
    };
    let wanted = |label: &str| words.iter().all(|word| label.contains(word.as_str()));
    println!("{}", cpu_name());
    let memory: Vec<Memory> = (0..2).map(|_| Memory::new(bytes)).collect();
    for kernels in Kernels::available().filter(|kernels| kernels.name != "scalar") {
        if words.iter().any(|word| {
            Kernels::available().any(|other| other.name == word && other.name != kernels.name)
        }) {
            continue;
        }
        let roofs = Roofs::measure(&kernels, &memory);
        print_header("rows x cols", "GMAC/s");
        for case in products::cases(kernels) {
            if wanted(&case.label()) {
                roofs.print(&case.label(), &memory[..1], |memory| case.runner(memory));
                roofs.print(&case.label(), &memory, |memory| case.runner(memory));
            }
        }
        for case in neurons::cases(kernels) {
            if wanted(&case.label()) {
                roofs.print(&case.label(), &memory[..1], |memory| case.runner(memory));
                roofs.print(&case.label(), &memory, |memory| case.runner(memory));
            }
        }
        print_header("", "Gop/s");
        for case in small::cases(kernels) {
            if wanted(&case.label()) {
                roofs.print_small(&case.label(), &memory[0], |memory| case.runner(memory));
            }
        }
        attend::print_attend(&kernels, &roofs, &words, &memory[0]);
    }
}

fn print_header(shape: &str, arithmetic: &str) {
    println!(
        "{:46} threads   GB/s  read {arithmetic:>7}   peak  roof",
        format!("table       kernel           type  {shape}")
    );
}

/// The CPU as Linux names it.
fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = |line: &&str| line.starts_with("model name") || line.starts_with("CPU part");
    let line = text.lines().find(named).unwrap_or("CPU: not told");
    line.replace('\t', "")
}

/// Starts this program again with weights in huge pages, as the engine keeps them, where the C
/// library knows how; true if that was done.
fn with_huge_pages() -> bool {
    const TUNABLES: &str = "GLIBC_TUNABLES";
    if !cfg!(all(target_os = "linux", target_env = "gnu")) || std::env::var(TUNABLES).is_ok() {
        return false;
    }
    let Ok(program) = std::env::current_exe() else {
        return false;
    };
    let again = std::process::Command::new(program)
        .args(std::env::args().skip(1))
        .env(TUNABLES, "glibc.malloc.hugetlb=1")
        .status();
    match again {
        Ok(status) if status.success() => true,
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(_) => false,
    }
}
