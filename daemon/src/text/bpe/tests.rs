use super::*;
use tokenizers::Model as _;

/// The same small numbers for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Random merge rules over three letters; rules may repeat, and be of no use.
fn random_model(seed: u64, options: serde_json::Value) -> serde_json::Value {
    let mut numbers = Numbers(seed * 2 + 1);
    let mut texts: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
    let mut merges = Vec::new();
    for _ in 0..numbers.below(12) {
        let left = texts[numbers.below(texts.len())].clone();
        let right = texts[numbers.below(texts.len())].clone();
        let joined = format!("{left}{right}");
        if !texts.contains(&joined) {
            texts.push(joined);
        }
        merges.push(serde_json::json!([left, right]));
    }
    texts.push("?".to_string());
    let ids = texts
        .into_iter()
        .enumerate()
        .map(|(id, text)| (text, (id as u32 * 3).into()));
    let mut model = options;
    model["type"] = "BPE".into();
    model["vocab"] = serde_json::Value::Object(ids.collect());
    model["merges"] = merges.into();
    model
}

#[test]
fn agrees_with_the_tokenizers_crate_on_random_models() {
    let options = [
        serde_json::json!({"unk_token": "?", "fuse_unk": true}),
        serde_json::json!({"unk_token": "?", "fuse_unk": false}),
        serde_json::json!({"unk_token": "?", "ignore_merges": true}),
    ];
    for seed in 1..400 {
        let json = random_model(seed, options[seed as usize % 3].clone()).to_string();
        let bpe = Bpe::from_json(&json).unwrap();
        let reference: tokenizers::models::bpe::BPE = serde_json::from_str(&json).unwrap();
        let mut numbers = Numbers(seed + 7);
        let mut work = Work::default();
        for _ in 0..50 {
            let len = 1 + numbers.below(12);
            let word: String = (0..len)
                .map(|_| ['a', 'b', 'c', 'a', 'b', 'é'][numbers.below(6)])
                .collect();
            let mut ids = Vec::new();
            bpe.encode_word(&word, &mut work, &mut ids).unwrap();
            let want = reference.tokenize(&word).unwrap();
            let want: Vec<u32> = want.iter().map(|token| token.id).collect();
            assert_eq!(ids, want, "seed {seed}: {word} by {json}");
        }
    }
}

#[test]
fn old_files_are_read() {
    let model = r##"{"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["#version: 0.2", "a b"]}"##;
    let bpe = Bpe::from_json(model).unwrap();
    let mut ids = Vec::new();
    bpe.encode_word("aab", &mut Work::default(), &mut ids)
        .unwrap();
    assert_eq!(ids, [0, 2]);
    let mut ids = Vec::new();
    bpe.encode_word("", &mut Work::default(), &mut ids).unwrap();
    assert!(ids.is_empty());
    let error = bpe
        .encode_word("a€", &mut Work::default(), &mut ids)
        .unwrap_err();
    assert_eq!((error, ids.len()), (UnknownCharacter('€'), 0));
}

#[test]
fn what_is_missing_is_named() {
    let error = |json| Bpe::from_json(json).unwrap_err().to_string();
    assert!(error(r#"{"merges": []}"#).starts_with("missing field `vocab`"));
    assert!(error(r#"{"vocab": {}}"#).starts_with("missing field `merges`"));
    assert!(error(r#"{}"#).starts_with("missing field `vocab`"));
    assert!(error(r#"{"vocab": {"a": 0, "b": 0}}"#).starts_with("id 0 of \"b\" is used"));
    assert!(error(r#"{"vocab": [], "merges": []}"#).contains("an object of token texts and ids"));
}

#[test]
fn one_long_word_is_no_slower_than_many_short_ones() {
    let model = r#"{"vocab": {"a": 0, "aa": 1, "aaaa": 2}, "merges": ["a a", "aa aa"]}"#;
    let bpe = Bpe::from_json(model).unwrap();
    let mut ids = Vec::new();
    bpe.encode_word(&"a".repeat(1 << 20), &mut Work::default(), &mut ids)
        .unwrap();
    assert_eq!(ids, vec![2; 1 << 18]);
}
