//! Chat templates: messages to the text that the model was trained on.

#[cfg(test)]
mod tests;

use super::python;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, context};
use serde::Serialize;
use std::io;

/// A template runs at most so many steps: a hundred times what real ones need for a long
/// conversation.
const STEPS_MAX: u64 = 2_000_000;

/// Bytes that a template may produce.
const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// Bytes that a template may have.
const SOURCE_BYTES_MAX: usize = 1 << 20;

/// How deep a template may nest macros, loops and includes.
const DEPTH_MAX: usize = 100;

/// Names and sources of the templates that can be chosen for a model that has none.
pub const BUILTIN_TEMPLATES: [(&str, &str); 7] = [
    ("chatml", include_str!("template/builtin/chatml.jinja")),
    ("gemma", include_str!("template/builtin/gemma.jinja")),
    ("llama2", include_str!("template/builtin/llama2.jinja")),
    ("llama3", include_str!("template/builtin/llama3.jinja")),
    ("mistral", include_str!("template/builtin/mistral.jinja")),
    ("phi3", include_str!("template/builtin/phi3.jinja")),
    ("zephyr", include_str!("template/builtin/zephyr.jinja")),
];

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: &str, content: &str) -> Self {
        Message {
            role: role.to_string(),
            content: content.to_string(),
        }
    }
}

/// What a template may ask for besides the messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct RenderOptions<'o> {
    /// The text ends where the assistant is to go on.
    pub add_generation_prompt: bool,
    /// The start token's text; empty where the model has none.
    pub bos_token: &'o str,
    /// The end token's text.
    pub eos_token: &'o str,
    /// The time for templates that tell the model the date, in seconds since 1970. Without it
    /// they use the date they were written with, and the text is the same every day.
    pub now_unix_s: Option<i64>,
}

/// Why there is no text. A template that fails is never replaced by another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateError {
    /// The model has no template and none was chosen.
    Missing,
    /// No built-in template has this name.
    UnknownName(String),
    /// The template is longer than [`ChatTemplate`] takes.
    SourceTooLong {
        /// Its length.
        have_bytes: usize,
        /// The most that is taken.
        max_bytes: usize,
    },
    /// The template can't be read.
    Syntax {
        /// Line in the template, from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// The template can't be rendered for these messages.
    Render {
        /// Line in the template, from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// The template itself refuses these messages, by `raise_exception`.
    Refused {
        /// Line in the template, from 1.
        line: usize,
        /// The template's words.
        reason: String,
    },
    /// The template runs on and on.
    TooManySteps {
        /// The most that may be.
        max: u64,
    },
    /// The template gives too much text.
    TooLong {
        /// The most that may be.
        max_bytes: usize,
    },
}

impl std::fmt::Display for TemplateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = BUILTIN_TEMPLATES.map(|(name, _)| name).join(", ");
        match self {
            Self::Missing => {
                write!(
                    f,
                    "the model has no chat template: choose one by --template ({names})"
                )
            }
            Self::UnknownName(name) => {
                write!(f, "no chat template is called {name:?}, only {names}")
            }
            Self::SourceTooLong {
                have_bytes,
                max_bytes,
            } => write!(
                f,
                "the chat template has {have_bytes} bytes, at most {max_bytes} may be"
            ),
            Self::Syntax { line, reason } => {
                write!(f, "the chat template can't be read: line {line}: {reason}")
            }
            Self::Render { line, reason } => {
                write!(
                    f,
                    "the chat template can't be rendered: line {line}: {reason}"
                )
            }
            Self::Refused { line, reason } => {
                write!(
                    f,
                    "the chat template refuses these messages: line {line}: {reason}"
                )
            }
            Self::TooManySteps { max } => {
                write!(f, "the chat template takes more than {max} steps")
            }
            Self::TooLong { max_bytes } => {
                write!(f, "the chat template gives more than {max_bytes} bytes")
            }
        }
    }
}

impl std::error::Error for TemplateError {}

/// What `raise_exception` said.
#[derive(Debug)]
struct Refusal(String);

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// A template, read and checked; rendering takes messages only.
///
/// Templates are those of Hugging Face: Jinja2 with `trim_blocks`, `lstrip_blocks`, loop controls
/// and Python's methods of strings, lists and dictionaries. There are no tools and no documents.
///
/// Steps, nesting and the text that is given are limited. Memory for strings that a template
/// builds without printing them is not: templates come with the image, and are trusted that far.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// Reads a template.
    ///
    /// # Errors
    ///
    /// The line and the reason.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(TemplateError::SourceTooLong {
                have_bytes: source.len(),
                max_bytes: SOURCE_BYTES_MAX,
            });
        }
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_recursion_limit(DEPTH_MAX);
        environment.set_fuel(Some(STEPS_MAX));
        environment.set_formatter(python::print);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", python::to_json);
        environment.add_function(
            "raise_exception",
            |reason: String| -> Result<Value, Error> {
                let error = Error::new(ErrorKind::InvalidOperation, reason.clone());
                Err(error.with_source(Refusal(reason)))
            },
        );
        let source = python::without_generation_tags(source);
        environment
            .add_template_owned(NAME, source)
            .map_err(|error| TemplateError::Syntax {
                line: error.line().unwrap_or(1),
                reason: reason_of(&error),
            })?;
        Ok(ChatTemplate { environment })
    }

    /// The built-in template of this name.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn builtin(name: &str) -> Result<Self, TemplateError> {
        let found = BUILTIN_TEMPLATES.iter().find(|entry| entry.0 == name);
        let (_, source) = found.ok_or_else(|| TemplateError::UnknownName(name.to_string()))?;
        ChatTemplate::new(source)
    }

    /// The built-in template `chosen`, or else the model's own.
    ///
    /// # Errors
    ///
    /// Neither is there, or the one that is to be used can't be read.
    pub fn choose(model: Option<&str>, chosen: Option<&str>) -> Result<Self, TemplateError> {
        match (chosen, model) {
            (Some(name), _) => ChatTemplate::builtin(name),
            (None, Some(source)) => ChatTemplate::new(source),
            (None, None) => Err(TemplateError::Missing),
        }
    }

    /// The text of the conversation.
    ///
    /// # Errors
    ///
    /// The line and the reason, or which limit was passed.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions<'_>,
    ) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME).map_err(render_error)?;
        // Undefined without a time, so that templates take their own default.
        let strftime_now = options.now_unix_s.map_or(Value::UNDEFINED, |now| {
            Value::from_function(move |format: String| {
                python::strftime(&format, now).map_err(|letter| {
                    let reason = format!("strftime: {letter:?} is not known");
                    Error::new(ErrorKind::InvalidOperation, reason)
                })
            })
        });
        let context = context! {
            messages => messages,
            add_generation_prompt => options.add_generation_prompt,
            bos_token => options.bos_token,
            eos_token => options.eos_token,
            tools => (),
            documents => (),
            strftime_now => strftime_now,
        };
        let mut output = Limited {
            text: Vec::new(),
            is_full: false,
        };
        let result = template
            .render_captured_to(context, &mut output)
            .map(|_| ());
        if output.is_full {
            return Err(TemplateError::TooLong {
                max_bytes: OUTPUT_BYTES_MAX,
            });
        }
        result.map_err(render_error)?;
        Ok(String::from_utf8_lossy(&output.text).into_owned())
    }
}

/// Output that refuses what passes the limit.
struct Limited {
    text: Vec<u8>,
    is_full: bool,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > OUTPUT_BYTES_MAX {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn render_error(error: Error) -> TemplateError {
    let line = error.line().unwrap_or(1);
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        if let Some(Refusal(reason)) = inner.downcast_ref() {
            return TemplateError::Refused {
                line,
                reason: reason.clone(),
            };
        }
        source = inner.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::TooManySteps { max: STEPS_MAX },
        _ => TemplateError::Render {
            line,
            reason: reason_of(&error),
        },
    }
}

/// Kind and detail, without the position: that is said elsewhere.
fn reason_of(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
