//! The members of a request body, of every endpoint: what routing needs of them, in one pass.
//!
//! Members come in any order, and the last of equal ones counts, as in the engines' parsers. The parts of the prompt
//! are therefore held apart and joined at the end in the order of chat templates: tools, documents, template options,
//! system, messages. `tool_choice`, `response_format` and sampling options do not reach the prompt.

use super::json::{JsonError, Kind, RawStr, Scanner};
use super::plain::{self, Batch, Side};
use super::prompt::{Header, Segment, Segments};
use super::{Endpoint, PromptRequest, ReadError, chat, media};

/// What has been read of a body.
pub(super) struct Body<'a> {
    request: PromptRequest<'a>,
    settings: Settings<'a>,
    front: Front<'a>,
    system: Segments<'a>,
    messages: Segments<'a>,
    batch: Batch<'a>,
    queries: Side<'a>,
    documents: Side<'a>,
    media: [Option<[u8; 16]>; 3],
}

/// JSON that stands before the conversation.
#[derive(Default)]
struct Front<'a> {
    tools: Option<&'a [u8]>,
    functions: Option<&'a [u8]>,
    documents: Option<&'a [u8]>,
    template: Option<&'a [u8]>,
    template_kwargs: Option<&'a [u8]>,
}

/// Members of which one is taken before another.
#[derive(Default)]
struct Settings<'a> {
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    max_new_tokens: Option<u64>,
    lora_path: Option<RawStr<'a>>,
    lora_id: Option<RawStr<'a>>,
    prompt_cache_key: Option<RawStr<'a>>,
    priority: Option<i64>,
    user: Option<RawStr<'a>>,
    metadata_user: Option<RawStr<'a>>,
}

/// Reads a whole document. Too deep a one is taken for JSON and gives what was read before that point, without prompts.
pub(super) fn read<'a>(endpoint: Endpoint, document: &'a [u8]) -> Result<PromptRequest<'a>, ReadError> {
    let mut body = Body::new(endpoint);
    match body.read(&mut Scanner::new(document)) {
        Ok(()) => Ok(body.finish()),
        Err(JsonError::TooDeep) => Ok(body.settings.apply(body.request)),
        Err(JsonError::NotJson { offset, what }) => Err(ReadError::NotJson { offset, what }),
    }
}

// === impl Body ===

impl<'a> Body<'a> {
    fn new(endpoint: Endpoint) -> Self {
        Self {
            request: PromptRequest::new(endpoint),
            settings: Settings::default(),
            front: Front::default(),
            system: Segments::default(),
            messages: Segments::default(),
            batch: Batch::default(),
            queries: Side::default(),
            documents: Side::default(),
            media: [None; 3],
        }
    }

    fn read(&mut self, scanner: &mut Scanner<'a>) -> Result<(), JsonError> {
        if scanner.peek()? == Kind::Object {
            scanner.object(|key, scanner| self.member(&key.bytes(), scanner))?;
        } else {
            scanner.skip()?;
        }
        scanner.end()
    }

    fn member(&mut self, key: &[u8], scanner: &mut Scanner<'a>) -> Result<(), JsonError> {
        use Endpoint::{Completions, CountTokens, Embeddings, Generate, Messages, Pooling, Responses, Tokenize};
        let endpoint = self.request.endpoint;
        match (key, endpoint) {
            (b"messages", _) if endpoint.takes_messages() => self.messages(scanner),
            (b"input", Responses) => self.messages(scanner),
            (b"instructions", Responses) | (b"system", Messages | CountTokens) => self.system(scanner),
            (b"prompt", Completions | Tokenize | Generate)
            | (b"input", Embeddings | Pooling)
            | (b"text" | b"input_ids", Generate) => self.batch(scanner),
            (b"image_data" | b"audio_data" | b"video_data", Generate) => self.media(key, scanner),
            (b"query" | b"queries" | b"text_1" | b"data_1", _) if endpoint.takes_pairs() => {
                self.queries = plain::read_side(scanner)?;
                Ok(())
            }
            (b"documents" | b"texts" | b"text_2" | b"data_2", _) if endpoint.takes_pairs() => {
                self.documents = plain::read_side(scanner)?;
                Ok(())
            }
            _ if endpoint.takes_messages() || endpoint == Responses => self.front_member(key, scanner),
            _ => self.setting(key, scanner),
        }
    }

    fn messages(&mut self, scanner: &mut Scanner<'a>) -> Result<(), JsonError> {
        self.messages = Segments::of_messages();
        chat::read(scanner, &mut self.messages)
    }

    /// Anthropic's `system` and the Responses' `instructions` become a system message in the engine, as they do here.
    fn system(&mut self, scanner: &mut Scanner<'a>) -> Result<(), JsonError> {
        self.system = Segments::default();
        chat::read_as(RawStr::plain("system"), scanner, &mut self.system)
    }

    /// A `null` beside the member that is used does not take its place.
    fn batch(&mut self, scanner: &mut Scanner<'a>) -> Result<(), JsonError> {
        if scanner.peek()? == Kind::Literal {
            return scanner.skip().map(drop);
        }
        self.batch = plain::read(scanner)?;
        Ok(())
    }

    fn media(&mut self, key: &[u8], scanner: &mut Scanner<'a>) -> Result<(), JsonError> {
        let [image, audio, video] = &mut self.media;
        let place = match key {
            b"image_data" => image,
            b"audio_data" => audio,
            _ => video,
        };
        *place = media::read(scanner)?;
        Ok(())
    }

    fn front_member(&mut self, key: &[u8], scanner: &mut Scanner<'a>) -> Result<(), JsonError> {
        let place = match key {
            b"tools" => &mut self.front.tools,
            b"functions" => &mut self.front.functions,
            b"documents" => &mut self.front.documents,
            b"chat_template" => &mut self.front.template,
            b"chat_template_kwargs" => &mut self.front.template_kwargs,
            _ => return self.setting(key, scanner),
        };
        *place = Some(scanner.skip()?);
        Ok(())
    }

    fn setting(&mut self, key: &[u8], scanner: &mut Scanner<'a>) -> Result<(), JsonError> {
        let request = &mut self.request;
        match key {
            b"model" => request.model = scanner.string_or_skip()?.map(|model| model.text()),
            b"stream" => request.stream = scanner.is_true()?,
            b"stream_options" => {
                request.include_usage = false;
                members(scanner, |key, scanner| match key {
                    b"include_usage" => scanner.is_true().map(|wanted| request.include_usage = wanted),
                    _ => scanner.skip().map(drop),
                })?;
            }
            b"n" => request.choices = choices(scanner)?,
            b"cache_salt" => request.cache_salt = scanner.string_or_skip()?.map(|salt| salt.text()),
            b"previous_response_id" => {
                request.previous_response_id = scanner.string_or_skip()?.map(|id| id.text());
            }
            b"sampling_params" => {
                let settings = &mut self.settings;
                members(scanner, |key, scanner| match key {
                    b"max_new_tokens" => scanner.integer().map(|max| settings.max_new_tokens = max),
                    b"n" => choices(scanner).map(|count| request.choices = count),
                    _ => scanner.skip().map(drop),
                })?;
            }
            _ => self.settings.member(key, scanner)?,
        }
        Ok(())
    }

    /// Joins what was held apart.
    fn finish(mut self) -> PromptRequest<'a> {
        let batch = if !self.messages.is_empty() {
            let mut batch = Batch::default();
            batch.prompts.push(self.front.segments().append(self.system).append(self.messages).into_prompt());
            batch
        } else if self.request.endpoint.takes_pairs() {
            plain::pairs(&self.queries, &self.documents)
        } else {
            std::mem::take(&mut self.batch).with_media(self.media)
        };
        let mut request = self.settings.apply(self.request);
        request.prompts = batch.prompts;
        request.more_prompts = batch.more_prompts;
        request.more_prompt_bytes = batch.more_bytes;
        request
    }
}

// === impl Front ===

impl<'a> Front<'a> {
    fn segments(&self) -> Segments<'a> {
        let mut segments = Segments::default();
        let parts = [
            (Header::Tools, "", self.tools),
            (Header::Functions, "", self.functions),
            (Header::Documents, "", self.documents),
            (Header::TemplateOption, "template", self.template),
            (Header::TemplateOption, "kwargs", self.template_kwargs),
        ];
        for (header, name, json) in parts {
            if let Some(json) = json.filter(|json| !is_nothing(json)) {
                segments.push(Segment::Header(header, RawStr::plain(name)));
                segments.push(if header == Header::Tools { Segment::Tools(json) } else { Segment::Json(json) });
            }
        }
        segments
    }
}

/// `null`, `[]` or `{}`: to an engine the same as absent.
fn is_nothing(json: &[u8]) -> bool {
    let mut significant = json.iter().filter(|byte| !byte.is_ascii_whitespace());
    json == b"null" || matches!((significant.next(), significant.next()), (_, Some(b']' | b'}')))
}

// === impl Settings ===

impl<'a> Settings<'a> {
    fn member(&mut self, key: &[u8], scanner: &mut Scanner<'a>) -> Result<(), JsonError> {
        match key {
            b"max_tokens" => self.max_tokens = scanner.integer()?,
            b"max_completion_tokens" => self.max_completion_tokens = scanner.integer()?,
            b"max_output_tokens" => self.max_output_tokens = scanner.integer()?,
            b"lora_path" => self.lora_path = scanner.string_or_skip()?,
            b"lora_id" => self.lora_id = scanner.string_or_skip()?,
            b"prompt_cache_key" => self.prompt_cache_key = scanner.string_or_skip()?,
            b"user" => self.user = scanner.string_or_skip()?,
            b"priority" => self.priority = scanner.signed_integer()?,
            b"metadata" => members(scanner, |key, scanner| match key {
                b"user_id" => scanner.string_or_skip().map(|user| self.metadata_user = user),
                _ => scanner.skip().map(drop),
            })?,
            _ => drop(scanner.skip()?),
        }
        Ok(())
    }

    fn apply(self, mut request: PromptRequest<'a>) -> PromptRequest<'a> {
        let is_messages = matches!(request.endpoint, Endpoint::Messages | Endpoint::CountTokens);
        let metadata_user = self.metadata_user.filter(|_| is_messages);
        let session_key = self.prompt_cache_key.or(self.user).or(metadata_user);
        request.max_output_tokens =
            self.max_completion_tokens.or(self.max_tokens).or(self.max_output_tokens).or(self.max_new_tokens);
        request.adapter = self.lora_path.or(self.lora_id).map(|adapter| adapter.text());
        request.priority = self.priority;
        request.session_key = session_key.filter(|key| key.raw_len() > 0).map(|key| key.text());
        request
    }
}

/// Reads the members of an object; another value is skipped.
fn members<'a>(
    scanner: &mut Scanner<'a>,
    mut member: impl FnMut(&[u8], &mut Scanner<'a>) -> Result<(), JsonError>,
) -> Result<(), JsonError> {
    if scanner.peek()? != Kind::Object {
        return scanner.skip().map(drop);
    }
    scanner.object(|key, scanner| member(&key.bytes(), scanner))
}

fn choices(scanner: &mut Scanner<'_>) -> Result<u32, JsonError> {
    let count = scanner.integer()?.unwrap_or(1);
    Ok(u32::try_from(count).unwrap_or(u32::MAX).max(1))
}
