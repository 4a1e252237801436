// Registers a problem, evaluates, streams, cancels, and reads an error's details: everything from evaluator.proto alone.
//
//   node client.js ADDRESS PROTO_ROOT PROBLEM_FILE
//
// Prints one JSON object. Candidates are scripts of the tests' own executor.
"use strict";

const crypto = require("node:crypto");
const fs = require("node:fs");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const protobuf = require("protobufjs");

const [address, root, problemFile] = process.argv.slice(2);
const definition = loader.loadSync("kernelevo/evaluator/v1/evaluator.proto", {
  includeDirs: [root],
  keepCase: true,
  enums: String,
  longs: Number,
  oneofs: true,
});
const { EvaluatorService } = grpc.loadPackageDefinition(definition).kernelevo.evaluator.v1;
const client = new EvaluatorService(address, grpc.credentials.createInsecure());

// google.rpc's own messages, as far as they are read here.
const rpc = protobuf.parse(`
  syntax = "proto3";
  package google.rpc;
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; }
  message FieldViolation { string field = 1; string description = 2; }
  message BadRequest { repeated FieldViolation field_violations = 1; }
`, { keepCase: true }).root;

const unary = (method, request) =>
  new Promise((resolve, reject) => {
    client[method](request, (error, answer) => (error ? reject(error) : resolve(answer)));
  });

// The last event of a stream, and the stages that came before; `onStage` hears of them as they come.
const stream = (method, request, onStage = () => {}) =>
  new Promise((resolve, reject) => {
    const stages = [];
    let last;
    client[method](request)
      .on("data", (event) => {
        if (event.event === "progress") {
          stages.push(event.progress.stage);
          onStage(event.progress.stage);
        } else {
          last = event[event.event];
        }
      })
      .on("error", reject)
      .on("end", () => resolve({ last, stages }));
  });

const candidate = (script) => ({ source: `# script: ${script}\nclass ModelNew:\n    pass\n` });

function details(error) {
  const Status = rpc.lookupType("google.rpc.Status");
  const status = Status.decode(error.metadata.get("grpc-status-details-bin")[0]);
  const found = { code: grpc.status[error.code] };
  for (const one of status.details) {
    const name = one.type_url.split("/").pop();
    if (name === "google.rpc.ErrorInfo" || name === "google.rpc.BadRequest") {
      Object.assign(found, rpc.lookupType(name).decode(one.value).toJSON());
    }
  }
  return found;
}

async function main() {
  const problem = { source: fs.readFileSync(problemFile, "utf8"), name: "plus one" };
  const report = (await stream("RegisterProblem", { problem, client_id: "node" })).last;

  const asked = { problem_digest: report.problem_digest, client_id: "node" };
  const evaluated = await stream("Evaluate", {
    ...asked,
    request_id: crypto.randomUUID(),
    candidate: candidate("output_mismatch"),
    limits: { check_time: { seconds: 7 } },
  });

  const request_id = crypto.randomUUID();
  let answer;
  const cancelled = await stream("Evaluate", { ...asked, request_id, candidate: candidate("passed hold") }, (stage) => {
    if (stage === "STAGE_TIME" && answer === undefined) {
      answer = unary("CancelEvaluation", { request_id, client_id: "node" });
    }
  });
  const recorded = await unary("GetEvaluation", { request_id });

  let refused;
  try {
    await stream("Evaluate", { ...asked, request_id: "nonsense", candidate: candidate("passed") });
  } catch (error) {
    refused = details(error);
  }

  process.stdout.write(
    JSON.stringify({
      digest: report.problem_digest,
      verdict: evaluated.last.verdict,
      stages: evaluated.stages,
      stopped: (await answer).stopped,
      cancelled: cancelled.last.verdict,
      recorded: recorded.evaluation.verdict,
      refused,
    }),
  );
  client.close();
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
