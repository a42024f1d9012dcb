//! `tessera chat`: talk with a model.

use std::io::{BufRead, IsTerminal, Write, stderr, stdin, stdout};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::run::write_stats;
use super::{naming, start_and_load};
use crate::engine::{EngineOptions, EngineReport, LinuxSession, OpenImage};
use crate::generate::{Finish, Generator, check_fits};
use crate::metrics::Recorder;
use crate::options::{ChatArgs, GenerateArgs};
use crate::text::{ChatTemplate, Message, RenderOptions, TokenBytes};
use crate::vocabulary::Vocabulary;

/// A conversation with one model.
pub struct Conversation {
    /// The session.
    pub session: LinuxSession,
    /// What it runs on.
    pub report: EngineReport,
    /// What was measured.
    pub recorder: Recorder,
    image: PathBuf,
    generator: Generator,
    vocabulary: Vocabulary,
    bytes: TokenBytes,
    template: ChatTemplate,
    bos: String,
    eos: String,
    messages: Vec<Message>,
}

impl Conversation {
    /// Starts a session for a conversation.
    pub fn start(
        model: &OpenImage,
        options: &EngineOptions,
        template: Option<&str>,
        generate: &GenerateArgs,
    ) -> Result<Self> {
        let vocabulary = Vocabulary::required(model, "a conversation")?;
        let template = ChatTemplate::choose(Vocabulary::template(model)?.as_deref(), template)?;
        let (session, report) = start_and_load(model, options)?;
        let end_ids = Vocabulary::end_ids(model, Some(&vocabulary));
        let superblock = model.image.superblock();
        let text = |id: Option<u32>| {
            id.and_then(|id| vocabulary.tokenizer.text(id))
                .unwrap_or("")
                .to_owned()
        };
        let vocab_size = session.image().shape().vocab_size;
        Ok(Conversation {
            image: model.path.clone(),
            generator: Generator::new(generate, vocab_size, session.seq_len(), end_ids),
            recorder: Recorder::with_capacity(session.seq_len()),
            bos: text(superblock.bos_token),
            eos: text(superblock.eos_tokens().first().copied()),
            bytes: vocabulary.tokenizer.token_bytes(),
            session,
            report,
            vocabulary,
            template,
            messages: Vec::new(),
        })
    }

    /// What the model is told about itself.
    pub fn set_system(&mut self, text: &str) {
        self.messages.insert(0, Message::new("system", text));
    }

    /// One turn: says `text`, and emits the answer as it comes.
    ///
    /// # Errors
    /// A context that is full; then the turn is forgotten.
    pub fn say(&mut self, text: &str, emit: &mut dyn FnMut(&str) -> Result<()>) -> Result<Finish> {
        let guarded = self.vocabulary.tokenizer.guard(text);
        self.messages.push(Message::new("user", &guarded));
        let result = self.answer(emit);
        match result {
            Ok((finish, answer)) => {
                let guarded = self.vocabulary.tokenizer.guard(&answer);
                self.messages.push(Message::new("assistant", &guarded));
                Ok(finish)
            }
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    fn answer(&mut self, emit: &mut dyn FnMut(&str) -> Result<()>) -> Result<(Finish, String)> {
        let options = RenderOptions {
            add_generation_prompt: true,
            bos_token: &self.bos,
            eos_token: &self.eos,
            now_unix_s: None,
        };
        let rendered = self.template.render(&self.messages, &options)?;
        let add_bos = self.vocabulary.add_bos;
        let ids = self
            .vocabulary
            .tokenizer
            .encode_rendered(&rendered, add_bos)?;
        // What the context already holds is not computed again; one token at least is.
        let known = &self.generator.history[..self.session.pos()];
        let same = known.iter().zip(&ids).take_while(|(a, b)| a == b).count();
        let same = same.min(ids.len().saturating_sub(1));
        self.generator.truncate(&mut self.session, same);
        check_fits(&self.session, &ids[same..])?;
        let mut answer = String::new();
        let finish = self.generator.run(
            &mut self.session,
            &ids[same..],
            Some(&self.bytes),
            &mut self.recorder,
            &mut |text| {
                answer.push_str(text);
                emit(text)
            },
        );
        Ok((naming(&self.image, finish)?, answer))
    }
}

/// Runs the command.
pub fn run(args: &ChatArgs) -> Result<()> {
    let model = OpenImage::open(&args.engine.image)?;
    let template = args.template.as_deref();
    let mut talk = Conversation::start(&model, &args.engine.options(), template, &args.generate)?;
    if let Some(system) = &args.system {
        talk.set_system(system);
    }
    let mut has_text = false;
    let print = &mut |text: &str| {
        has_text |= !text.is_empty();
        let mut out = stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    };
    match &args.once {
        Some(text) => {
            let said = talk.say(text, print);
            if said.is_ok() || has_text {
                writeln!(stdout())?;
            }
            said?;
        }
        None => converse(&mut talk, print)?,
    }
    let metrics = talk.recorder.metrics(&talk.session, &talk.report);
    write_stats(args.stats.as_deref(), &metrics)
}

/// Reads lines until the input ends; an error in one turn does not end the conversation,
/// but its exit status where nobody watches.
fn converse(talk: &mut Conversation, print: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    let is_terminal = stdin().is_terminal();
    if is_terminal {
        eprintln!("Say something; an empty line or Ctrl-D ends.");
    }
    let mut lines = stdin().lock().lines();
    let mut failed = 0;
    loop {
        if is_terminal {
            eprint!("> ");
            stderr().flush()?;
        }
        let line = lines.next().transpose();
        let line = line
            .context("cannot read standard input")?
            .unwrap_or_default();
        if line.trim().is_empty() {
            ensure!(is_terminal || failed == 0, "{failed} turns had no answer");
            return Ok(());
        }
        match talk.say(&line, print) {
            Ok(Finish::ContextFull) => eprintln!("\n[the context is full]"),
            Ok(_) => writeln!(stdout())?,
            // Nobody reads the answers any more.
            Err(error) if error.is::<std::io::Error>() => return Err(error),
            Err(error) => {
                failed += 1;
                eprintln!("\ntessera: {error:#}");
            }
        }
    }
}
