//! Packs language models into Tessera images, and shows and checks images.
//!
//! A model is a GGUF file or a Hugging Face folder ([`source`]); [`pack`] writes it as an image,
//! neuron by neuron, in the order in which tokens need it; [`synth`] makes models of prescribed
//! sparsity; [`inspect`] shows what is in an image and what it takes to run it; [`verify`] reads
//! all of it and compares it with its model. The image's format is `docs/format.md`, and in code
//! `tessera_runtime::format`.
//!
//! [`profile`] runs a model over a text and writes its image anew, with neurons ordered by their
//! activity, statistics and predictors.
//!
//! Out of scope: running models for their own sake (that is `tessera`), training and fine-tuning
//! of weights, and any change in place to an image that exists.
//!
//! ```no_run
//! use layout_tool::pack::{PackOptions, pack};
//!
//! let options = PackOptions::new("model.gguf", "model.image");
//! let report = pack(&options, &|done, all| eprintln!("{done} of {all} bytes"))?;
//! println!("{report}");
//! # Ok::<(), layout_tool::pack::PackError>(())
//! ```
#![forbid(unsafe_code)]

pub mod budget;
pub mod image_file;
pub mod inspect;
mod neuron_order;
pub mod pack;
pub mod parallel;
pub mod profile;
pub mod regular;
pub mod simulate;
pub mod size;
pub mod source;
pub mod sparsity;
pub mod summary;
pub mod synth;
mod tiles;
pub mod verify;
