//! docs/format.md says what the code does.

use std::path::Path;

use tessera_kernels::{Activation, Kernels, WeightType};
use tessera_runtime::format::{
    ENTRY_BYTES, SUPERBLOCK_BYTES, Section, SectionKind, Superblock, VERSION,
};
use tessera_runtime::shape::Shape;

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/format.md");
    std::fs::read_to_string(path).unwrap()
}

/// Cells of the rows of the first table after `title`.
fn table(title: &str) -> Vec<Vec<String>> {
    let text = document();
    let after = text
        .split(title)
        .nth(1)
        .unwrap_or_else(|| panic!("no {title:?}"));
    let lines = after.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    let cells = |line: &str| {
        line[1..line.len() - 1]
            .split('|')
            .map(|c| c.trim().to_owned())
            .collect()
    };
    rows.map(cells).collect()
}

/// Offset, size and name of each field; they follow each other without gaps up to `end`.
fn fields(title: &str, end: usize) -> Vec<(usize, usize, String)> {
    let number = |text: &str| text.parse::<usize>().unwrap();
    let rows: Vec<_> = table(title)
        .iter()
        .map(|row| (number(&row[0]), number(&row[1]), row[2].clone()))
        .collect();
    let mut at = 0;
    for (offset, bytes, name) in &rows {
        assert_eq!(*offset, at, "{name}");
        at += bytes;
    }
    assert_eq!(at, end);
    rows
}

/// The names of the fields in which two encodings differ; padding has no name.
fn changed(fields: &[(usize, usize, String)], one: &[u8], two: &[u8]) -> Vec<String> {
    let differs = |(offset, bytes, _): &&(usize, usize, String)| {
        one[*offset..offset + bytes] != two[*offset..offset + bytes]
    };
    let names = fields
        .iter()
        .filter(differs)
        .map(|(_, _, name)| name.clone());
    names.filter(|name| name != "superblock_crc").collect()
}

const SHAPE: Shape = Shape {
    dim: 64,
    ffn_dim: 96,
    n_layers: 2,
    n_heads: 4,
    n_kv_heads: 2,
    head_dim: 32,
    vocab_size: 100,
    seq_len: 256,
    n_experts: 4,
    n_experts_used: 2,
    sliding_window: 7,
    activation: Activation::Silu,
    rms_eps: 1e-5,
    attention_factor: 1.0,
    qkv_bias: false,
    qk_norm: false,
    tied_embeddings: false,
    norm_topk_prob: false,
    kv_f32: false,
    bundle_neurons: 32,
    cluster_neurons: 32,
};

const SUPERBLOCK: Superblock = Superblock {
    image_bytes: 1 << 20,
    image_id: [9; 16],
    table_offset: SUPERBLOCK_BYTES as u64,
    table_entries: 10,
    table_crc: 77,
    shape: SHAPE,
    bos_token: None,
    add_bos: false,
    eos_tokens: [1; 8],
    eos_count: 1,
    name: [b'a'; 128],
};

fn encoded(superblock: &Superblock) -> [u8; SUPERBLOCK_BYTES] {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    superblock.write(&mut bytes);
    bytes
}

#[test]
fn superblock_fields_are_where_the_document_says() {
    let fields = fields("## Superblock", SUPERBLOCK_BYTES);
    let base = encoded(&SUPERBLOCK);
    let check = |names: &[&str], change: &dyn Fn(&mut Superblock)| {
        let mut superblock = SUPERBLOCK;
        change(&mut superblock);
        assert_eq!(changed(&fields, &base, &encoded(&superblock)), names);
    };
    check(&["image_bytes"], &|s| s.image_bytes = u64::MAX);
    check(&["image_id"], &|s| s.image_id = [8; 16]);
    check(&["table_offset"], &|s| s.table_offset = u64::MAX);
    check(&["table_entries"], &|s| s.table_entries = u32::MAX);
    check(&["table_crc"], &|s| s.table_crc = u32::MAX);
    check(&["dim"], &|s| s.shape.dim = 0xffff_ffff);
    check(&["ffn_dim"], &|s| s.shape.ffn_dim = 0xffff_ffff);
    check(&["n_layers"], &|s| s.shape.n_layers = 0xffff_ffff);
    check(&["n_heads"], &|s| s.shape.n_heads = 0xffff_ffff);
    check(&["n_kv_heads"], &|s| s.shape.n_kv_heads = 0xffff_ffff);
    check(&["head_dim"], &|s| s.shape.head_dim = 0xffff_ffff);
    check(&["vocab_size"], &|s| s.shape.vocab_size = 0xffff_ffff);
    check(&["seq_len"], &|s| s.shape.seq_len = 0xffff_ffff);
    check(&["n_experts"], &|s| s.shape.n_experts = 0xffff_ffff);
    check(&["n_experts_used"], &|s| {
        s.shape.n_experts_used = 0xffff_ffff
    });
    check(&["sliding_window"], &|s| {
        s.shape.sliding_window = 0xffff_ffff
    });
    check(&["activation"], &|s| {
        s.shape.activation = Activation::ReluBoth
    });
    check(&["rms_eps"], &|s| s.shape.rms_eps = 2.0);
    check(&["attention_factor"], &|s| s.shape.attention_factor = 2.0);
    check(&["bundle_neurons"], &|s| s.shape.bundle_neurons = 1);
    check(&["cluster_neurons"], &|s| s.shape.cluster_neurons = 64);
    check(&["bos_token"], &|s| s.bos_token = Some(0));
    check(&["eos_count"], &|s| s.eos_count = 8);
    check(&["eos_tokens"], &|s| s.eos_tokens = [7; 8]);
    check(&["name"], &|s| s.name = [b'b'; 128]);
    for (bit, change) in [
        (|s: &mut Superblock| s.shape.qkv_bias = true) as fn(&mut Superblock),
        |s| s.shape.qk_norm = true,
        |s| s.shape.tied_embeddings = true,
        |s| s.shape.norm_topk_prob = true,
        |s| s.shape.kv_f32 = true,
        |s| s.add_bos = true,
    ]
    .into_iter()
    .enumerate()
    {
        check(&["flags"], &change);
        let mut superblock = SUPERBLOCK;
        change(&mut superblock);
        let at = fields
            .iter()
            .find(|(_, _, name)| name == "flags")
            .unwrap()
            .0;
        assert_eq!(encoded(&superblock)[at], 1 << bit);
    }
    let flags = [
        "qkv_bias",
        "qk_norm",
        "tied_embeddings",
        "norm_topk_prob",
        "kv_f32",
        "add_bos",
    ];
    let text = document();
    let line = text
        .lines()
        .find(|line| line.starts_with("Flags, from bit 0"))
        .unwrap();
    let places: Vec<_> = flags
        .iter()
        .map(|flag| line.find(&format!("`{flag}`")).unwrap())
        .collect();
    assert!(places.is_sorted(), "{places:?}");
    assert_eq!(&base[..8], b"TESSERA\n");
    assert!(text.starts_with(&format!("# The image format, version {VERSION}\n")));
    for (offset, bytes, _) in fields.iter().filter(|(_, _, name)| name.is_empty()) {
        assert!(
            base[*offset..offset + bytes].iter().all(|byte| *byte == 0),
            "{offset}"
        );
    }
}

#[test]
fn table_fields_are_where_the_document_says() {
    let fields = fields("Each entry:", ENTRY_BYTES);
    let base = Section::new(SectionKind::Vectors, 0, 0, 0, 0);
    let encoded = |section: &Section| {
        let mut bytes = [0xff; ENTRY_BYTES];
        section.write(&mut bytes);
        bytes
    };
    type Change = fn(&mut Section);
    let changes: [(&str, Change); 13] = [
        ("kind", |s| s.kind = u16::MAX),
        ("layer", |s| s.layer = u16::MAX),
        ("expert", |s| s.expert = u16::MAX),
        ("offset", |s| s.offset = u64::MAX),
        ("bytes", |s| s.bytes = u64::MAX),
        ("rows", |s| s.rows = u32::MAX),
        ("cols", |s| s.cols = u32::MAX),
        ("types", |s| s.types = [255; 3]),
        ("unit_rows", |s| s.unit_rows = u32::MAX),
        ("unit_bytes", |s| s.unit_bytes = u32::MAX),
        ("first_bytes", |s| s.first_bytes = u32::MAX),
        ("data_bytes", |s| s.data_bytes = u64::MAX),
        ("crc", |s| s.crc = u32::MAX),
    ];
    for (name, change) in changes {
        let mut section = base;
        change(&mut section);
        assert_eq!(
            changed(&fields, &encoded(&base), &encoded(&section)),
            [name]
        );
        assert_eq!(Section::parse(&encoded(&section)), section);
    }
}

#[test]
fn kinds_and_types_have_the_numbers_of_the_document() {
    let kinds = table("Fields that a kind has no use for are 0.");
    assert_eq!(kinds.len(), SectionKind::ALL.len());
    for (row, kind) in kinds.iter().zip(SectionKind::ALL) {
        assert_eq!(row[0], (kind as u16).to_string());
        assert_eq!(row[1], kind.name());
        assert_eq!(row[2].starts_with("blob"), kind.is_blob(), "{row:?}");
    }
    let types = table("## Weights");
    assert_eq!(types.len(), WeightType::ALL.len());
    for (row, ty) in types.iter().zip(WeightType::ALL) {
        assert_eq!(
            (&row[0], &row[1]),
            (&(ty as u8).to_string(), &ty.name().to_owned())
        );
        for cols in [32usize, 64, 96, 4096] {
            let pairs = cols.div_ceil(64);
            let value = |text: &str| match text.split(' ').collect::<Vec<_>>()[..] {
                [number, "*", "cols"] => number.parse::<usize>().unwrap() * cols,
                [number, "*", "pairs"] => number.parse::<usize>().unwrap() * pairs,
                ["cols", "/", number] => cols / number.parse::<usize>().unwrap(),
                ["cols"] => cols,
                ["0"] => 0,
                _ => panic!("{text}"),
            };
            assert_eq!(value(&row[2]), ty.code_bytes(cols), "{row:?}");
            assert_eq!(value(&row[3]), ty.scale_bytes(cols), "{row:?}");
        }
    }
    assert_eq!((Kernels::SCALAR.crc32c)(0, b"123456789"), 0xE306_9283);
    assert!(document().contains("0xE3069283"));
}
