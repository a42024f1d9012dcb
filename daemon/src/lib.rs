//! The command line of Tessera: everything that needs an operating system and a heap.
#![forbid(unsafe_code)]

pub mod commands;
pub mod demo;
pub mod engine;
pub mod environment;
pub mod generate;
pub mod metrics;
pub mod options;
pub mod planning;
pub mod pressure;
pub mod probe;
pub mod profile;
pub mod text;
pub mod vocabulary;
