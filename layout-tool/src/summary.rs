//! Bytes and weight types of an image by kind of section.

use std::fmt;

use tessera_kernels::WeightType;
use tessera_runtime::format::{Image, SectionKind};

use crate::size;

/// All sections of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindSummary {
    /// The kind.
    pub kind: SectionKind,
    /// Number of sections.
    pub count: usize,
    /// Bytes of all sections.
    pub bytes: u64,
    /// Bytes that are weights or text: the rest are checksums and padding.
    pub data_bytes: u64,
    /// Weight types that occur, each with the number of matrices that have it: of the matrix; of
    /// gate, up and down.
    pub types: [Vec<(WeightType, usize)>; 3],
}

/// Sections of `image` by kind, in the order of the kinds' numbers. Kinds that this build does not
/// know are left out.
pub fn kinds(image: &Image<'_>) -> Vec<KindSummary> {
    let mut all: Vec<KindSummary> = Vec::new();
    for index in 0..image.n_sections() {
        let section = image.section(index);
        let Some(kind) = SectionKind::from_u16(section.kind) else {
            continue;
        };
        let place = all
            .iter()
            .position(|summary| summary.kind == kind)
            .unwrap_or_else(|| {
                let (count, bytes, data_bytes) = (0, 0, 0);
                all.push(KindSummary {
                    kind,
                    count,
                    bytes,
                    data_bytes,
                    types: Default::default(),
                });
                all.len() - 1
            });
        let summary = &mut all[place];
        summary.count += 1;
        summary.bytes += section.bytes;
        if kind.is_blob() {
            summary.data_bytes += section.data_bytes;
            continue;
        }
        let matrices = if kind == SectionKind::Ffn { 3 } else { 1 };
        for which in 0..matrices {
            let Some(ty) = section.weight_type(which) else {
                continue;
            };
            let row_bytes = ty.row_bytes(section.cols as usize) as u64;
            summary.data_bytes += u64::from(section.rows) * row_bytes;
            let types = &mut summary.types[which];
            match types.iter_mut().find(|(known, _)| *known == ty) {
                Some((_, count)) => *count += 1,
                None => types.push((ty, 1)),
            }
        }
    }
    all.sort_by_key(|summary| summary.kind as u16);
    all
}

impl KindSummary {
    /// Types in words: `q4o`, or `q4o, q4o, q6 x 14 + q8 x 14` for gate, up and down.
    pub fn types_text(&self) -> String {
        let words = self
            .types
            .iter()
            .filter(|types| !types.is_empty())
            .map(|types| {
                if let [(ty, _)] = types[..] {
                    return ty.name().to_owned();
                }
                let each = types
                    .iter()
                    .map(|(ty, count)| format!("{} x {count}", ty.name()));
                each.collect::<Vec<_>>().join(" + ")
            });
        words.collect::<Vec<_>>().join(", ")
    }
}

/// A table of kinds and of what lies between their sections.
pub struct Table<'a>(pub &'a [KindSummary], pub u64);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Table(kinds, image_bytes) = *self;
        let share = |part: u64, all: u64| 100.0 * part as f64 / (all.max(1)) as f64;
        let head = ("section", "count", "bytes", "share", "padding", "types");
        writeln!(
            f,
            "{:<14} {:>6} {:>15} {:>7} {:>8}  {}",
            head.0, head.1, head.2, head.3, head.4, head.5
        )?;
        for kind in kinds {
            writeln!(
                f,
                "{:<14} {:>6} {:>15} {:>5.1} % {:>6.1} %  {}",
                kind.kind.name(),
                kind.count,
                size::grouped(kind.bytes),
                share(kind.bytes, image_bytes),
                share(kind.bytes - kind.data_bytes, kind.bytes),
                kind.types_text()
            )?;
        }
        let sections: u64 = kinds.iter().map(|kind| kind.bytes).sum();
        let data: u64 = kinds.iter().map(|kind| kind.data_bytes).sum();
        let rest = image_bytes - sections;
        let (name, rest_text) = ("head and gaps", size::grouped(rest));
        writeln!(
            f,
            "{name:<14} {:>6} {rest_text:>15} {:>5.1} %",
            "",
            share(rest, image_bytes)
        )?;
        write!(
            f,
            "{:<14} {:>6} {:>15} {:>5.1} % {:>6.1} %",
            "image",
            "",
            size::grouped(image_bytes),
            100.0,
            share(image_bytes - data, image_bytes)
        )
    }
}
