//! Runs language models larger than the memory they may use.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod arena;
mod attend;
mod attention;
pub mod budget;
pub mod cache;
pub mod chunk;
mod cluster;
pub mod digest;
mod ffn;
pub mod format;
mod kv;
pub mod limits;
mod model;
pub mod observe;
mod partials;
mod pipeline;
pub mod plan;
pub mod planner;
mod product;
pub mod profile;
pub mod sampler;
pub mod session;
pub mod shape;
mod sparse;
pub mod stats;
pub mod stream;
pub mod weights;
mod work;

pub use tessera_kernels::kv::KvType;

pub use observe::Observer;
pub use plan::{ColdOptions, Mode, Plan, PlanError, PlanOptions};
pub use session::{Session, SessionError};
