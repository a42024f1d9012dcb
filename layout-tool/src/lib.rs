//! Packs language models into Tessera images, and shows and checks images.
#![forbid(unsafe_code)]

pub mod image_file;
pub mod inspect;
pub mod pack;
pub mod parallel;
pub mod size;
pub mod source;
pub mod summary;
pub mod verify;
