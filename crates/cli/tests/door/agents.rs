//! Real agents, as they are published, each in a sandbox that has a token and no key. Their providers are scripted.

use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::provider::{Got, KEY, Provider, calls, search_inside, send};
use crate::world::{World, until};

/// Where `scripts/install-tools agents` puts them.
pub fn agents() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cache"));
    let place = cache.join("belljar/agents");
    assert!(place.exists(), "no agents in {}: scripts/install-tools agents", place.display());
    place
}

/// What an agent is told to do first: something that its token is not good for. And then its work.
const BEYOND: &str = "curl -sS -H \"x-api-key: $BELLJAR_TOKEN\" -F file=@/etc/hostname $BELLJAR_GATEWAY/anthropic/v1/files; \
                      curl -sS --max-time 5 https://93.184.215.14/ || true";
const WORK: &str = "echo made > made";

/// Sets the gateway up for one provider; the model is pinned.
pub fn set_up(world: &World, kind: &str, provider: &Provider) {
    std::fs::write(world.home.path().join("key"), KEY).unwrap();
    let text = format!(
        "[secrets]\nkey = {{ file = \"{}\" }}\n[operations.\"llm:chat\"]\nkind = \"{kind}\"\nupstream = \"http://127.0.0.1:{}\"\n\
         secret = \"key\"\npin = {{ model = \"small\" }}\n[operations.\"llm:chat\".prices.small]\nuncached = \"3\"\ncache_read = \"0.3\"\n\
         cache_write_5m = \"3.75\"\noutput = \"15\"\n",
        world.home.path().join("key").display(),
        provider.port,
    );
    std::fs::write(world.home.path().join("gateway.toml"), text).unwrap();
}

/// Has an agent work in a sandbox, and sees that it did, that its provider got the key and the pinned model, and that the key is nowhere inside.
fn work(world: &World, provider: &Provider, agent: &Path, script: &str) -> Value {
    let file = format!("{}:/home/user/agent", agent.display());
    let options = ["--grant", "llm:chat", "--memory", "3g", "--disk", "3g", "--ttl", "10m", "--file", &file];
    let id = world.create(&options);
    let ran = world.json(&["exec", "--timeout", "3m", &id, "--", "sh", "-c", script]);
    let told: Vec<_> = provider.got();
    assert!(!told.is_empty(), "it asked nothing: {ran}");
    for got in told.iter().filter(|got| !got.body.is_empty()) {
        let keys = [got.header("x-api-key"), got.header("authorization")]
            .map(|key| key.unwrap_or_default().to_owned());
        assert!(keys.iter().any(|key| key.ends_with(KEY)), "{:?}", got.headers);
        assert_eq!(got.json()["model"], "small", "{}", got.body);
        assert!(!format!("{got:?}").contains("bjt_"), "the token stays here");
    }
    search_inside(world, &id);
    until("all is told", || calls(world, &id).iter().filter(|call| call["refused"] != true).count() >= 2);
    let priced = calls(world, &id);
    let priced: Vec<_> = priced.iter().filter(|call| call["model"] == "small").collect();
    assert!(
        priced.iter().all(|call| call["nano_dollars"].as_u64() > Some(0) && call["is_final"] == true),
        "{priced:?}"
    );
    json!({ "ran": ran, "id": id })
}

fn refusals(world: &World, id: &str) -> usize {
    calls(world, id).iter().filter(|call| call["refused"] == true).count()
}

fn stream(to: &mut TcpStream, events: &[Value]) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let events =
        events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap()));
    let _ = to.write_all((head.to_owned() + &events.collect::<String>()).as_bytes());
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// How often this stands in what was asked.
fn count(got: &Got, what: &str) -> usize {
    got.body.matches(what).count()
}

pub fn as_anthropic(got: &Got, to: &mut TcpStream) {
    if got.body.is_empty() {
        return send(to, "200 OK", "{}");
    }
    let said = match count(got, "\"tool_result\"") {
        turn @ 0..2 => {
            let input = json!({ "command": ([BEYOND, WORK][turn]), "description": "work" });
            json!([
                { "type": "content_block_start", "index": 0, "content_block": { "type": "tool_use", "id": format!("toolu_{turn}"), "name": "Bash", "input": {} } },
                { "type": "content_block_delta", "index": 0, "delta": { "type": "input_json_delta", "partial_json": input.to_string() } },
            ])
        }
        _ => json!([
            { "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } },
            { "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "all done" } },
        ]),
    };
    let stop = if said[0]["content_block"]["type"] == "text" { "end_turn" } else { "tool_use" };
    let usage = json!({ "input_tokens": 1000, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 0, "output_tokens": 1 });
    let mut events = vec![
        json!({ "type": "message_start", "message": { "id": "msg_1", "type": "message", "role": "assistant", "model": "small", "content": [], "usage": usage } }),
    ];
    events.extend(said.as_array().unwrap().clone());
    events.extend([
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": stop }, "usage": { "output_tokens": 30 } }),
        json!({ "type": "message_stop" }),
    ]);
    stream(to, &events);
}

/// Has Claude Code work.
pub const CLAUDE: &str = "export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 CLAUDE_CODE_MAX_RETRIES=2 ANTHROPIC_MODEL=claude-large; \
     echo 'make a file' | ./agent --print --output-format stream-json --verbose --dangerously-skip-permissions --max-turns 9; cat made";

/// Where it is.
pub fn claude() -> PathBuf {
    agents().join("node_modules/@anthropic-ai/claude-code-linux-x64/claude")
}

#[test]
fn claude_code_works_with_a_token_alone() {
    let world = World::new();
    let provider = Provider::start(as_anthropic);
    set_up(&world, "anthropic", &provider);
    let done = work(&world, &provider, &claude(), CLAUDE);
    let said = done["ran"]["stdout"].as_str().unwrap();
    assert!(said.ends_with("made\n") && said.contains("\"is_error\":false"), "{done}");
    assert!(refusals(&world, done["id"].as_str().unwrap()) >= 1, "what it was told first is written down");
}

fn as_responses(got: &Got, to: &mut TcpStream) {
    let item = match count(got, "\"function_call_output\"") {
        turn @ 0..2 => {
            let arguments = json!({ "cmd": ([BEYOND, WORK][turn]) }).to_string();
            json!({ "type": "function_call", "id": format!("fc_{turn}"), "call_id": format!("call_{turn}"), "name": "exec_command", "arguments": arguments })
        }
        _ => {
            json!({ "type": "message", "id": "msg_1", "role": "assistant", "content": [{ "type": "output_text", "text": "all done" }] })
        }
    };
    let usage = json!({
        "input_tokens": 1000, "input_tokens_details": { "cached_tokens": 200 }, "output_tokens": 30,
        "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": 1030,
    });
    stream(
        to,
        &[
            json!({ "type": "response.created", "response": { "id": "resp_1" } }),
            json!({ "type": "response.output_item.done", "output_index": 0, "item": item }),
            json!({ "type": "response.completed", "response": { "id": "resp_1", "model": "small", "status": "completed", "usage": usage } }),
        ],
    );
}

#[test]
fn codex_works_with_a_token_alone() {
    let world = World::new();
    let provider = Provider::start(as_responses);
    set_up(&world, "openai-responses", &provider);
    let script = "mkdir -p .codex; cat > .codex/config.toml <<END
model = \"large\"
model_provider = \"gateway\"
[model_providers.gateway]
name = \"gateway\"
base_url = \"$OPENAI_BASE_URL\"
wire_api = \"responses\"
env_key = \"OPENAI_API_KEY\"
END
./agent exec --json --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox 'make a file' </dev/null; cat made";
    let agents =
        agents().join("node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex");
    let done = work(&world, &provider, &agents, script);
    let said = done["ran"]["stdout"].as_str().unwrap();
    assert!(said.ends_with("made\n") && said.contains("all done"), "{done}");
    assert!(refusals(&world, done["id"].as_str().unwrap()) >= 1, "what it was told first is written down");
    // What the provider would run itself was taken out, and it went on without.
    assert!(provider.got().iter().all(|got| !got.body.contains("\"web_search\"")));
}

fn as_chat(got: &Got, to: &mut TcpStream) {
    let turn = count(got, "\"role\":\"assistant\"").max(count(got, "\"role\": \"assistant\""));
    let message = if got.json()["tools"].is_array() {
        let command = [BEYOND, WORK, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"][turn.min(2)];
        let call = json!({ "name": "bash", "arguments": json!({ "command": command }).to_string() });
        json!({ "role": "assistant", "content": "so", "tool_calls": [{ "id": format!("call_{turn}"), "type": "function", "function": call }] })
    } else {
        let code = ["x = 6 * 7\nprint(x)", "final_answer(x)"][turn.min(1)];
        json!({ "role": "assistant", "content": format!("Thought: so\n<code>\n{code}\n</code>") })
    };
    let usage = json!({ "prompt_tokens": 1000, "completion_tokens": 30, "total_tokens": 1030 });
    let choice = json!({ "index": 0, "message": message, "finish_reason": "stop" });
    let answer = json!({ "id": "chat_1", "object": "chat.completion", "created": 1, "model": "small", "choices": [choice], "usage": usage });
    send(to, "200 OK", &answer.to_string());
}

#[test]
fn smolagents_works_with_a_token_alone() {
    let world = World::new();
    let provider = Provider::start(as_chat);
    set_up(&world, "openai-chat", &provider);
    let script = "PYTHONPATH=agent python3 -c \"
import os
from smolagents import CodeAgent, OpenAIModel
model = OpenAIModel(model_id='large', api_base=os.environ['OPENAI_BASE_URL'], api_key=os.environ['OPENAI_API_KEY'])
print('answer', CodeAgent(tools=[], model=model).run('six times seven'))\"";
    let done = work(&world, &provider, &agents().join("smolagents"), script);
    assert!(done["ran"]["stdout"].as_str().unwrap().ends_with("answer 42\n"), "{done}");
}

#[test]
fn mini_swe_agent_works_with_a_token_alone() {
    let world = World::new();
    let provider = Provider::start(as_chat);
    set_up(&world, "openai-chat", &provider);
    let script = "export PYTHONPATH=agent MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors LITELLM_LOCAL_MODEL_COST_MAP=True; \
                  python3 -m minisweagent.run.mini -m openai/large -t 'make a file' -y --exit-immediately; cat made";
    let done = work(&world, &provider, &agents().join("mini"), script);
    assert!(done["ran"]["stdout"].as_str().unwrap().ends_with("made\n"), "{done}");
    assert!(refusals(&world, done["id"].as_str().unwrap()) >= 1, "what it was told first is written down");
}
