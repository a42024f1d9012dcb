use super::*;

/// One entry of `expected.json`: what Jinja2 gives.
#[derive(serde::Deserialize)]
struct Expected {
    template: String,
    messages: Vec<Message>,
    add_generation_prompt: bool,
    now_unix_s: Option<i64>,
    text: Option<String>,
    refusal: Option<String>,
}

const FIXTURES: [(&str, &str); 6] = [
    ("blocks.jinja", include_str!("fixtures/blocks.jinja")),
    (
        "llama-3.2-dates.jinja",
        include_str!("fixtures/llama-3.2-dates.jinja"),
    ),
    ("llama-3.jinja", include_str!("fixtures/llama-3.jinja")),
    ("mistral.jinja", include_str!("fixtures/mistral.jinja")),
    ("qwen2.5.jinja", include_str!("fixtures/qwen2.5.jinja")),
    ("smollm2.jinja", include_str!("fixtures/smollm2.jinja")),
];

#[test]
fn templates_give_what_jinja2_gives() {
    let expected: Vec<Expected> =
        serde_json::from_str(include_str!("fixtures/expected.json")).unwrap();
    assert_eq!(expected.len(), 70);
    for case in expected {
        let fixture = FIXTURES.iter().find(|(name, _)| *name == case.template);
        let file = case.template.trim_end_matches(".jinja");
        // The built-in mistral shares its name with a fixture; neither is tested as the other.
        let builtin = BUILTIN_TEMPLATES.iter().find(|(name, _)| *name == file);
        let options = RenderOptions {
            add_generation_prompt: case.add_generation_prompt,
            bos_token: "<s>",
            eos_token: "</s>",
            now_unix_s: case.now_unix_s,
        };
        let render = |source: &str| {
            ChatTemplate::new(source)
                .unwrap()
                .render(&case.messages, &options)
        };
        let want = case.text.as_ref();
        let results = [builtin, fixture]
            .into_iter()
            .flatten()
            .map(|entry| render(entry.1));
        let results: Vec<_> = results.collect();
        assert!(!results.is_empty(), "{}", case.template);
        let matches = |result: &Result<String, TemplateError>| match (result, &case.refusal) {
            (Ok(text), None) => Some(text) == want,
            (Err(TemplateError::Refused { reason, .. }), Some(refusal)) => reason == refusal,
            _ => false,
        };
        assert!(
            results.iter().any(matches),
            "{}: {results:#?}, not {want:#?}",
            case.template
        );
    }
}

fn render(source: &str) -> Result<String, TemplateError> {
    let messages = [Message::new("user", "Hi"), Message::new("assistant", "Ho")];
    ChatTemplate::new(source)?.render(&messages, &RenderOptions::default())
}

#[test]
fn failures_name_line_and_reason() {
    let cases = [
        (
            "a\n{% for %}",
            "the chat template can't be read: line 2: syntax error: ",
        ),
        (
            "{{ 'never ends }}",
            "the chat template can't be read: line 1: syntax error: ",
        ),
        (
            "\n\n{{ 1 + 'x' }}",
            "the chat template can't be rendered: line 3: invalid operation: ",
        ),
        (
            "{{ nothing.more }}",
            "the chat template can't be rendered: line 1: undefined value",
        ),
        (
            "{{ messages | shout }}",
            "the chat template can't be rendered: line 1: unknown filter: ",
        ),
        (
            "{{ strftime_now('%Y') }}",
            "the chat template can't be rendered: line 1: ",
        ),
        (
            "{% include 'other' %}",
            "the chat template can't be rendered: line 1: template not found",
        ),
        (
            "\n{{ raise_exception('no\nsystem role') }}",
            "the chat template refuses these messages: line 2: no\nsystem role",
        ),
        (
            "{% macro f() %}{{ raise_exception('deep') }}{% endmacro %}\n{{ f() }}",
            "the chat template refuses these messages: line 1: deep",
        ),
    ];
    for (source, want) in cases {
        let error = render(source).unwrap_err().to_string();
        assert!(error.starts_with(want), "{source:?}: {error}");
    }
}

#[test]
fn hostile_templates_end() {
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    assert_eq!(
        render(loops),
        Err(TemplateError::TooManySteps { max: STEPS_MAX })
    );
    let prints = "{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}";
    assert_eq!(
        render(prints),
        Err(TemplateError::TooLong {
            max_bytes: OUTPUT_BYTES_MAX
        })
    );
    let recursion = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    assert!(matches!(
        render(recursion),
        Err(TemplateError::Render { .. })
    ));
    let repeats = "{{ ('x' * 999999999999) | length }}";
    assert!(matches!(render(repeats), Err(TemplateError::Render { .. })));
    let nested = format!(
        "{}{}",
        "{% if 1 %}".repeat(5000),
        "{% endif %}".repeat(5000)
    );
    assert!(matches!(render(&nested), Err(TemplateError::Syntax { .. })));
    let parentheses = format!("{{{{ {}1 }}}}", "(".repeat(60_000));
    assert!(matches!(
        render(&parentheses),
        Err(TemplateError::Syntax { .. })
    ));
    let long = "x".repeat(SOURCE_BYTES_MAX + 1);
    let error = TemplateError::SourceTooLong {
        have_bytes: SOURCE_BYTES_MAX + 1,
        max_bytes: SOURCE_BYTES_MAX,
    };
    assert_eq!(render(&long), Err(error));
}

#[test]
fn a_long_conversation_is_within_the_limits() {
    let messages: Vec<Message> = (0..2000)
        .map(|turn| Message::new(["user", "assistant"][turn % 2], "What a long way to go"))
        .collect();
    for (name, source) in FIXTURES.into_iter().chain(BUILTIN_TEMPLATES) {
        let text = ChatTemplate::new(source)
            .unwrap()
            .render(&messages, &RenderOptions::default());
        assert!(text.is_ok(), "{name}: {text:?}");
    }
}

#[test]
fn a_missing_template_is_not_guessed() {
    let error = ChatTemplate::choose(None, None).unwrap_err();
    assert_eq!(error, TemplateError::Missing);
    assert!(
        error
            .to_string()
            .contains("--template (chatml, gemma, llama2, llama3"),
        "{error}"
    );
    let error = ChatTemplate::choose(Some("fine"), Some("alpaca")).unwrap_err();
    assert_eq!(error, TemplateError::UnknownName("alpaca".to_string()));
    assert!(
        error
            .to_string()
            .starts_with("no chat template is called \"alpaca\", only chatml")
    );
    // A broken template of the model's is an error, not a reason to take another.
    let broken = ChatTemplate::choose(Some("{% if %}"), None);
    assert!(matches!(broken, Err(TemplateError::Syntax { line: 1, .. })));
    let text = |model, chosen| {
        let template = ChatTemplate::choose(model, chosen).unwrap();
        template
            .render(&[Message::new("user", "Hi")], &RenderOptions::default())
            .unwrap()
    };
    assert_eq!(text(Some("{{ messages[0].content }}"), None), "Hi");
    assert_eq!(
        text(Some("{% if %}"), Some("phi3")),
        "<|user|>\nHi<|end|>\n"
    );
}

#[test]
fn limits_are_said_with_numbers() {
    assert_eq!(
        TemplateError::TooManySteps { max: 5 }.to_string(),
        "the chat template takes more than 5 steps"
    );
    assert_eq!(
        TemplateError::TooLong { max_bytes: 9 }.to_string(),
        "the chat template gives more than 9 bytes"
    );
    assert_eq!(
        TemplateError::SourceTooLong {
            have_bytes: 9,
            max_bytes: 5
        }
        .to_string(),
        "the chat template has 9 bytes, at most 5 may be"
    );
}
