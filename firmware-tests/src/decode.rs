//! Log frames, decoded.

use defmt_decoder::{DecodeError, Table};

/// Lines of the `frames` that the image in the file `elf` sent.
///
/// # Errors
/// An image without log lines, or bytes that are no frames, in one sentence.
pub fn decode(elf: &[u8], frames: &[u8]) -> Result<String, String> {
    let table = Table::parse(elf).map_err(|error| format!("the strings of the image: {error}"))?;
    let table = table.ok_or("the image has no section .defmt: it was built without frames")?;
    let mut decoder = table.new_stream_decoder();
    decoder.received(frames);
    let mut lines = String::new();
    loop {
        match decoder.decode() {
            Ok(frame) => {
                lines += &frame.display(false).to_string();
                lines.push('\n');
            }
            Err(DecodeError::UnexpectedEof) => return Ok(lines),
            Err(DecodeError::Malformed) => return Err(format!("a broken frame after\n{lines}")),
        }
    }
}
