use super::*;
use crate::text::utf8::tests::for_all_splits;

/// Text, raw bytes, and whether it was stopped.
type Outcome = (String, Vec<u8>, bool);

/// Feeds `parts` one after the other, and looks at what is promised after each.
fn run(parts: &[&[u8]], stops: &[&str]) -> Outcome {
    let mut stream = TextStream::new(stops).unwrap();
    let (mut text, mut bytes, mut stopped) = (String::new(), Vec::new(), false);
    for part in parts {
        let piece = stream.push(part);
        assert!(
            !stopped || (piece.text.is_empty() && piece.bytes.is_empty()),
            "{parts:x?}"
        );
        text.push_str(piece.text);
        bytes.extend_from_slice(piece.bytes);
        stopped = piece.stopped;
    }
    let piece = stream.finish();
    text.push_str(piece.text);
    bytes.extend_from_slice(piece.bytes);
    assert_eq!(piece.stopped, stopped);
    assert_eq!(stream.finish().text, "");
    (text, bytes, stopped)
}

/// The definition: the stop string that ends first, of those the longest.
fn want(bytes: &[u8], stops: &[&str]) -> Outcome {
    let starts = (1..=bytes.len()).find_map(|end| {
        let ends = |stop: &&&str| bytes[..end].ends_with(stop.as_bytes());
        stops.iter().filter(ends).map(|stop| end - stop.len()).min()
    });
    let kept = &bytes[..starts.unwrap_or(bytes.len())];
    (
        String::from_utf8_lossy(kept).into_owned(),
        kept.to_vec(),
        starts.is_some(),
    )
}

#[test]
fn every_split_gives_what_the_whole_gives() {
    let texts: [&[u8]; 8] = [
        b"one STOP two",
        b"ababababc",
        "a😊\u{1}b😊".as_bytes(),
        b"caf\xC3STOP\xA9",
        b"aabaabaab",
        b"SSTOSTOSTOP",
        b"<|im_<|im_end|>",
        b"\xF0\x9F\x98",
    ];
    let stops: [&[&str]; 9] = [
        &[],
        &["STOP"],
        &["abc", "ababc", "bab"],
        &["😊"],
        &["aabaab", "abaaba"],
        &["TOP", "STOP", "STOS"],
        &["<|im_end|>", "end"],
        &["zzz", "STOPPED", "b"],
        &["\u{1}b", "a"],
    ];
    for text in texts {
        for stops in stops {
            let want = want(text, stops);
            for_all_splits(text, |parts| {
                assert_eq!(run(parts, stops), want, "{parts:x?} {stops:?}");
            });
        }
    }
}

#[test]
fn every_text_of_two_letters_and_every_pair_of_stops() {
    let word = |code: u32, len: u32| -> String {
        (0..len)
            .map(|place| if code >> place & 1 == 0 { 'a' } else { 'b' })
            .collect()
    };
    let words: Vec<String> = (1..=3)
        .flat_map(|len| (0..1 << len).map(move |code| word(code, len)))
        .collect();
    for code in 0..256 {
        let text = word(code, 8);
        let parts: Vec<&[u8]> = text.as_bytes().chunks(3).collect();
        for first in &words {
            for second in &words {
                let stops = [first.as_str(), second.as_str()];
                assert_eq!(
                    run(&parts, &stops),
                    want(text.as_bytes(), &stops),
                    "{stops:?}"
                );
            }
        }
    }
}

#[test]
fn only_what_could_begin_a_stop_string_is_held_back() {
    let mut stream = TextStream::new(&["</s>", "\n\n"]).unwrap();
    assert_eq!(stream.push(b"a<").text, "a");
    assert_eq!(stream.push(b"/").text, "");
    assert_eq!(stream.push(b"t\n").text, "</t");
    assert_eq!(stream.push(b"x<</").text, "\nx<");
    let piece = stream.push(b"s>more");
    assert_eq!(
        piece,
        Piece {
            text: "",
            bytes: b"",
            stopped: true
        }
    );
    assert_eq!(stream.push(b"more").text, "");
}

#[test]
fn the_end_gives_back_what_was_held() {
    let mut stream = TextStream::new(&["STOP"]).unwrap();
    assert_eq!(stream.push(b"\xC3").text, "");
    assert_eq!(stream.push(b"\xA9ST").text, "é");
    assert_eq!(stream.push(b"O\xE4\xBD").text, "STO");
    let piece = stream.finish();
    assert_eq!(
        (piece.text, piece.bytes, piece.stopped),
        ("\u{FFFD}", &b""[..], false)
    );
}

#[test]
fn raw_bytes_are_not_replaced() {
    let mut stream = TextStream::new::<&str>(&[]).unwrap();
    let piece = stream.push(b"a\xFF\xF0\x9F");
    assert_eq!(
        (piece.text, piece.bytes),
        ("a\u{FFFD}", &b"a\xFF\xF0\x9F"[..])
    );
}

#[test]
fn bad_stop_strings_are_refused() {
    let error = |stops: &[&str]| TextStream::new(stops).unwrap_err();
    assert_eq!(error(&["a", ""]), StopError::Empty { index: 1 });
    let long = "x".repeat(1025);
    let too_long = StopError::TooLong {
        index: 0,
        have_bytes: 1025,
        max_bytes: 1024,
    };
    assert_eq!(error(&[&long]), too_long);
    assert!(TextStream::new(&[&long[1..]]).is_ok());
    assert_eq!(error(&["a"; 65]), StopError::TooMany { have: 65, max: 64 });
    assert_eq!(
        error(&["a"; 65]).to_string(),
        "65 stop strings, at most 64 may be"
    );
    assert_eq!(error(&[""]).to_string(), "stop string 0 is empty");
    assert_eq!(
        too_long.to_string(),
        "stop string 0 has 1025 bytes, at most 1024 may be"
    );
}
