//! Every tensor type against the Python package `gguf` (see make_fixtures.py).

use layout_tool::source::{SourceType, dequantize, gguf};

#[test]
fn every_type_means_what_gguf_says() {
    let bytes = include_bytes!("../fixtures/types.gguf");
    let (floats, _) = include_bytes!("../fixtures/types.f32").as_chunks::<4>();
    let mut want = floats.iter().map(|b| f32::from_le_bytes(*b));
    let header = gguf::read_header(&bytes[..], bytes.len() as u64).unwrap();
    assert_eq!(header.tensors.len(), SourceType::ALL.len());
    for (name, tensor) in &header.tensors {
        assert_eq!(name, tensor.ty.name());
        assert_eq!(tensor.shape, [2, 256]);
        let mut out = [0.0; 512];
        let stored = &bytes[tensor.offset as usize..][..tensor.size_bytes as usize];
        dequantize(tensor.ty, stored, &mut out);
        for (i, have) in out.iter().enumerate() {
            let want = want.next().unwrap();
            assert_eq!(
                have.to_bits(),
                want.to_bits(),
                "{name} {i}: {have} is not {want}"
            );
        }
    }
    assert_eq!(want.next(), None);
}
