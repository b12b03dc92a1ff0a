use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;

use super::*;
use crate::request::Endpoint;
use crate::testing::config;
use crate::tokens::cache::TextCache;
use crate::tokens::request::{self, PlannedPrompt};

/// Templates, variables beside the messages of [`MESSAGES`], and what transformers 5.24 with Jinja2 3.1.6 renders of them.
const RENDERED: &str = include_str!("transformers.json");

const MESSAGES: &str = r#"[{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello world"},
    {"role": "assistant", "content": " ok "}]"#;

fn compiled(source: &str) -> Result<ChatTemplates, (minijinja::Error, PathBuf)> {
    let sources = TemplateSources { default: source.to_owned(), tool_use: None, path: "template".into() };
    ChatTemplates::new(&sources, &[("bos_token".into(), "<s>".into())])
}

fn rendered(source: &str, body: serde_json::Value) -> Result<String, NotTokenized> {
    let templates = compiled(source).unwrap();
    let mut plan = request::read(Endpoint::ChatCompletions, body.to_string().as_bytes(), &TextCache::new(0))?;
    let Some(PlannedPrompt::Chat(chat)) = plan.prompts.pop() else { unreachable!("a chat") };
    templates
        .render(&chat, UNIX_EPOCH + Duration::from_secs(1_795_965_161), &Stop::default())
        .map(|text| String::from_utf8(text).unwrap())
}

fn user(text: &str) -> serde_json::Value {
    serde_json::json!({"messages": [{"role": "user", "content": text}]})
}

#[test]
fn templates_give_what_transformers_gives() {
    // Not by `serde_json`, which would sort the members of objects.
    let cases: Vec<Value> = json::list(&json::parse(RENDERED.as_bytes()).unwrap()).unwrap().collect();
    assert_eq!(cases.len(), 20);
    let mut wrong = Vec::new();
    for case in cases {
        let source = json::member(&case, "template").unwrap().to_string();
        let expected = json::member(&case, "expected").unwrap().to_string();
        let null = || Value::from(());
        let mut variables = vec![
            (Value::from("add_generation_prompt"), Value::from(true)),
            (Value::from("tools"), null()),
            (Value::from("documents"), null()),
            (Value::from("messages"), json::parse(MESSAGES.as_bytes()).unwrap()),
        ];
        variables.extend(json::members(&json::member(&case, "variables").unwrap()).unwrap());
        let templates = compiled(&source).unwrap();
        let ours = templates.run(&templates.default, Value::from_pairs(variables), 0);
        if ours.as_deref() != Ok(expected.as_bytes()) {
            wrong.push(format!("{source}\n  is {expected:?}\n  we {ours:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_template_may_print_the_date_of_the_request() {
    assert_eq!(rendered("{{ strftime_now('%d %b %Y') }}", user("a")).unwrap(), "29 Nov 2026");
}

#[test]
fn special_tokens_and_arguments_of_the_request_are_variables() {
    let mut body = user("a");
    body["chat_template_kwargs"] =
        serde_json::json!({"enable_thinking": false, "add_generation_prompt": false, "left": null});
    let source =
        "{{ bos_token }}{{ enable_thinking }}{{ add_generation_prompt }}{{ left is defined }}{{ tools is none }}";
    assert_eq!(rendered(source, body).unwrap(), "<s>FalseTrueFalseTrue");
}

#[test]
fn an_exception_of_the_template_refuses_the_request() {
    assert_eq!(rendered("{{ raise_exception('no') }}", user("a")), Err(NotTokenized::Refused));
    assert_eq!(rendered("{{ messages.nothing.more }}", user("a")), Err(NotTokenized::Refused));
    // Jinja2 escapes what is added to such a text.
    assert_eq!(rendered("{{ '<'|safe + '<' }}", user("a")), Err(NotTokenized::Refused));
}

/// The texts are those of Jinja2 3.1 with CPython 3.11.
#[test]
fn lines_are_indented_as_jinja2_does() {
    let indented = |filter: &str, text: &str| rendered(&format!("{{{{ messages[0].content|{filter} }}}}"), user(text));
    for (filter, text, expected) in [
        ("indent", "a\nb\n\nc", "a\n    b\n\n    c"),
        ("indent(2, true)", "a\r\nb", "  a\n  b"),
        ("indent(width=1, blank=true)", "a\n\nb", "a\n \n b"),
        ("indent('> ')", "a\u{2028}b\rc", "a\n> b\n> c"),
        ("indent", "a\n", "a\n"),
        ("indent", "a\r", "a"),
        ("indent", "", ""),
        ("title", "GET the WEATHER", "Get The Weather"),
    ] {
        assert_eq!(indented(filter, text).as_deref(), Ok(expected), "{filter} of {text:?}");
    }
    for filter in ["title", "escape", "e", "safe"] {
        assert_eq!(indented(filter, "<b>al</b>"), Err(NotTokenized::Refused), "{filter}");
    }
}

#[test]
fn a_template_is_cut_by_fuel_and_by_what_it_writes() {
    let endless = "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}";
    assert_eq!(rendered(endless, user("a")), Err(NotTokenized::OutOfFuel));
    let large = "{% for i in range(10000) %}{{ messages[0].content }}{% endfor %}";
    assert_eq!(rendered(large, user(&"a".repeat(10_000))), Err(NotTokenized::TooLarge));
}

#[test]
fn a_final_message_is_continued_where_its_text_ends() {
    let said = |text: &str| {
        serde_json::json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": text}],
            "add_generation_prompt": false, "continue_final_message": true})
    };
    let keeps = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
    assert_eq!(rendered(keeps, said("yes ")).unwrap(), "<user>a</><assistant>yes ");
    let trims = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}";
    assert_eq!(rendered(trims, said("yes ")).unwrap(), "<user>a</><assistant>yes");
    let parts = "{% for m in messages %}<{% for p in m.content %}{{ p.text }}{% endfor %}>{% endfor %}";
    assert_eq!(rendered(parts, said("yes ")).unwrap(), "<a><yes ");
    let drops = "{% for m in messages %}{{ m.role }}{% if false %}content{% endif %}{% endfor %}";
    assert_eq!(rendered(drops, said("yes")), Err(NotTokenized::Refused));
}

#[test]
fn system_messages_move_to_the_first_place_only_for_templates_that_need_it() {
    let strict = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('') }}{% endif %}{% endfor %}";
    assert!(compiled(strict).unwrap().merges_system);
    assert!(!compiled("{% for m in messages %}{{ m.role }}{% endfor %}").unwrap().merges_system);
}

#[test]
fn a_broken_template_is_an_error_when_it_is_loaded() {
    assert!(compiled("{% for m in messages %}").is_err());
    assert!(compiled("{{ 'a }}").is_err());
}

fn fragment() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "{% for m in messages %}",
        "{% endfor %}",
        "{% if m %}",
        "{% else %}",
        "{% endif %}",
        "{{ m.content }}",
        "{{ messages }}",
        "{%- set x = messages[0] -%}",
        "{{ x | tojson }}",
        "{% macro f(a, b=1) %}",
        "{% endmacro %}",
        "{{ f(messages) }}",
        "{{ x.content.split('a') }}",
        "{{ x['content'][1:] | trim }}",
        "{% generation %}",
        "{% endgeneration %}",
        "{{ 'é'[0] ~ none }}",
        "{{ messages | join(x) }}",
        "{#",
        "#}",
        "{%",
        "%}",
        "{{",
        "}}",
        "'",
        "\"",
        "{{ range(100000) | list }}",
        "{{ x | string * 1000 }}",
        "{{ strftime_now('%Y %-d %') }}",
        "é",
        "\n",
        "{% break %}",
        "{{ x.content.partition('') }}",
        "{{ x.content.rsplit('', 2) }}",
        "{{ x | tojson(indent=1000000) }}",
        "{{ namespace(a=x).a }}",
    ])
}

proptest! {
    #![proptest_config(config(512))]

    #[test]
    fn no_template_panics(fragments in prop::collection::vec(fragment(), 0..12), noise in "\\PC{0,12}") {
        let source = fragments.concat() + &noise;
        let _ = ContentFormat::of(&source);
        if let Ok(templates) = compiled(&source) {
            let body = serde_json::json!({"messages": serde_json::from_str::<serde_json::Value>(MESSAGES).unwrap()}).to_string();
            let mut plan = request::read(Endpoint::ChatCompletions, body.as_bytes(), &TextCache::new(0)).unwrap();
            let Some(PlannedPrompt::Chat(chat)) = plan.prompts.pop() else { unreachable!("a chat") };
            let _ = templates.render(&chat, UNIX_EPOCH, &Stop::default());
        }
    }
}
