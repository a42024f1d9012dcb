//! Packs language models into Tessera images, and shows and checks images.
//!
//! A model is a GGUF file or a Hugging Face folder ([`source`]); [`pack`] writes it as an image,
//! neuron by neuron, in the order in which tokens need it; [`synth`] makes models of prescribed
//! sparsity; [`inspect`] shows what is in an image and what it takes to run it; [`verify`] reads
//! all of it and compares it with its model. The image's format is `docs/format.md`, and in code
//! `tessera_runtime::format`.
//!
//! Out of scope: running models (that is `tessera`), training and fine-tuning, tokenizers beyond
//! taking them over, and any change to an image that exists: it is packed again.
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
pub mod pack;
pub mod parallel;
pub mod regular;
pub mod simulate;
pub mod size;
pub mod source;
pub mod sparsity;
pub mod summary;
pub mod synth;
pub mod verify;
