"""Studies of tiny models: killed and resumed they are the uninterrupted ones, and the store refuses what is not wanted."""

import dataclasses
import fcntl
import io
import itertools
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock
from contextlib import redirect_stdout

import testing

try:
    import numpy as np
    from statsmodels.api import MNLogit

    import choir
    from choir.study import StudyError, configs, figures, foreign, jobs, lane, probe, recipe, statistics, store  # noqa: F401, all that it needs
    from choir.study.program import Runner
    from choir.study.study import Study
except ImportError as error:
    raise unittest.SkipTest(str(error)) from error

SCALE = {
    "config": {
        "model": {"layers": 2, "d_model": 32, "d_hidden": 48, "heads": 2, "experts": 8},
        "train": {"sequence_length": 32, "batch_sequences": 8, "learning_rate": 0.05},
    },
    "budgets": [5120, 10240], "seeds": 2, "rates": [0.03, 0.06], "deviation": 0.01,
}  # fmt: skip
RECIPE = {
    "name": "two", "title": "Two <arms>", "question": "Which?",
    "arms": [
        {"name": "EC", "set": {"router.name": "expert_choice"}},
        {"name": "top-2", "set": {"router.name": "gshard_top2"}},
    ],
    "claims": [
        {"text": "EC ends below.", "paper": "lower", "kind": "loss", "arm": "EC", "rival": "top-2", "figure": 1},
        {"text": "EC is there in half the steps.", "kind": "steps", "arm": "EC", "rival": "top-2", "figure": 2},
        {"text": "... time.", "kind": "seconds", "arm": "EC", "rival": "top-2", "figure": 2},
        {"text": "Top-2 asks for more.", "kind": "over_capacity", "arm": "top-2", "figure": 0.2},
        {"text": "Causal costs nothing.", "kind": "gap", "arm": "EC", "margin": 0.5},
    ],
}  # fmt: skip


def study(*words, wait=True, columns=2000):
    at = testing.run().parent
    (at / "scale.json").write_text(json.dumps(SCALE))
    (at / "two.json").write_text(json.dumps(RECIPE))
    (at / "timed.json").write_text(json.dumps({**RECIPE, "measure": ["time"]}))
    process = subprocess.Popen(
        [sys.executable, "-m", "choir.study", *map(str, words)], cwd=at, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "COLUMNS": str(columns)},
    )  # fmt: skip
    return process if not wait else (*process.communicate(timeout=300), process.returncode)


def run(out, *more, recipe="two.json", **how):
    return study("run", recipe, "--data", "data", "--out", out, "--scale", "scale.json", *more, **how)


def stored(out):
    return dict(store.Store(testing.run().parent / out)._all())


def store_anew(out, found):
    """A store with these results, and no others."""
    shutil.rmtree(testing.run().parent / out, ignore_errors=True)
    made = store.Store(testing.run().parent / out)
    for name, one in found.items():
        made.add(name, one)


def results(out):
    aside = ("step_seconds", "date", "threads")
    return {name: {key: one[key] for key in one if key not in aside} for name, one in stored(f"{out}/results").items()}


class Whole(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.out, cls.errors, cls.status = run("whole", "--jobs", 2, recipe="timed.json")

    def test_findings_are_printed(self):
        self.assertEqual(self.status, 0, self.errors)
        self.assertIn("With 2 seeds this study has 80 % power for", self.out)
        own = testing.run().parent / "whole" / "two-scale"
        page = (own / "report.html").read_text()
        for text in ("Two &lt;arms&gt;", "Refuted: ", "<details>", "<svg", "prefers-color-scheme", "Holm",
                     'data-head="result"'):  # fmt: skip
            self.assertIn(text, page)
        self.assertIn("<meta http-equiv=Content-Security-Policy content=\"default-src 'none';", page)
        self.assertNotIn("<script", page)
        self.assertEqual(page.count("% of the steps; "), 1)  # the caption says the regime once for all tables
        summary = json.loads((own / "summary.json").read_text())
        self.assertEqual([len(summary["arms"][0]["causal"]), len(summary["arms"][0]["causal"][0])], [2, 2])
        self.assertTrue(all(v for arm in summary["arms"] for row in arm["causal"] for v in row))
        self.assertEqual(summary["claims"][4]["verdict"], "confirmed")
        self.assertNotIn("not measured", [claim["verdict"] for claim in summary["claims"]])

    def test_cooled_ends_are_those_of_runs_that_cooled_by_themselves(self):
        at = testing.run().parent
        for path in (at / "whole" / "runs").glob("expert_choice-e8-r0.06-s2-40-*"):
            config = next((at / "whole" / "configs").glob(f"runs-{path.name}.json"))
            testing.program("train", "--config", config, "--data", at / "data", "--out", at / "alone")
            a, b = (p / "checkpoints" / "00000040" / "model.safetensors" for p in (path, at / "alone"))
            self.assertEqual(a.read_bytes(), b.read_bytes())
            return
        self.fail("no such run")

    def test_killed_and_resumed_it_is_the_same(self):
        logs, kills = testing.run().parent / "killed" / "logs", 0
        for count in (1, 4, 8, 11):  # of runs that have begun
            process = run("killed", "--jobs", 2, wait=False)
            while process.poll() is None and len(list(logs.glob("*"))) < count:
                time.sleep(0.02)
            time.sleep(0.3 * (count % 3))
            process.send_signal(signal.SIGKILL if kills % 2 else signal.SIGTERM)
            said = process.communicate()
            kills += process.returncode in (-signal.SIGKILL, 3)
            self.assertIn(process.returncode, (-signal.SIGKILL, 3), said)
            time.sleep(1)  # what it left saves and ends
        self.assertEqual(kills, 4)
        self.assertEqual(run("killed", "--jobs", 2)[2], 0)
        self.assertEqual(results("killed"), results("whole"))
        self.assertEqual(len(results("whole")), 12)  # 2 arms, 2 seeds, 2 budgets, and 4 runs of the search

    def test_a_run_killed_before_its_log_is_begun_anew(self):
        at = testing.run().parent
        shutil.copytree(at / "whole", at / "early")
        for path in (*at.glob("early/results/*"), *at.glob("early/trunks/*/*"), *at.glob("early/runs/*")):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "config.json":
                path.unlink()
        self.assertEqual(run("early", "--jobs", 2)[2], 0)
        self.assertEqual(results("early"), results("whole"))

    def test_without_a_cooldown(self):
        """... and where a budget has no step to cool in, an end point is evaluated as all are."""
        at = testing.run().parent
        (at / "warm.json").write_text(json.dumps({**SCALE, "cooldown": 0, "rates": [0.03], "seeds": 1}))
        words = ("run", "two.json", "--data", "data", "--out", "warm", "--scale", "warm.json", "--tokens", "256,512,1024")
        out, errors, status = study(*words)
        self.assertEqual(status, 0, out + errors)
        self.assertEqual(len(results("warm")), 6)

    def test_options_that_are_no_numbers(self):
        for option, value in (("--jobs", "-1"), ("--seeds", "-1"), ("--minutes", "-3"), ("--minutes", "nan"),
                              ("--tokens", "1e6,many"), ("--tokens", "0"), ("--tokens", "1e400")):  # fmt: skip
            _, errors, status = run("refused", option, value)
            self.assertEqual(status, 2, errors)
            self.assertIn(f"argument {option}: {value}: must be", errors)
        self.assertFalse((testing.run().parent / "refused").exists())

    def test_only_missing_runs_are_started(self):
        at = testing.run().parent
        kept = stored("whole/results")
        gone = sorted(name for name in kept if name.startswith("gshard_top2-e8-") and "-s2-40-" in name)[0]
        store_anew("some", {name: one for name, one in kept.items() if name != gone})
        out, errors, _ = run("again", "--store", "some", recipe="timed.json")
        self.assertIn(gone, stored("some"))
        self.assertEqual(len(list((at / "again" / "runs").iterdir())), 1, out)
        self.assertIn("step times: ", out)  # the runs themselves are elsewhere: said, and nothing else is lost

    def test_status(self):
        output = json.loads(study("status", "whole", "--json")[0])
        self.assertEqual(output[0]["arms"]["EC"]["done"], 4)
        self.assertIn("4 of 4 end points", study("status", "whole")[0])
        self.assertIn("report.html", study("report", "whole")[0])

    def test_the_rate_is_the_best_at_the_largest_budget(self):
        at = testing.run().parent
        found = stored("whole/results")
        kept = json.loads((at / "whole" / "two-scale" / "study.json").read_text())
        (at / "rates" / "two-scale").mkdir(parents=True)
        changed = {**kept, "store": str(at / "rates" / "results")}
        (at / "rates" / "two-scale" / "study.json").write_text(json.dumps(changed))
        for best, other in ((0.03, 0.06), (0.06, 0.03)):
            for rate, steps, loss in ((best, 40, 1.0), (best, 20, 9.0), (other, 40, 2.0), (other, 20, 0.5)):
                for name, one in found.items():
                    if f"-r{rate}-s1-{steps}-" in name:
                        one["final"]["causal"]["loss"] = loss
            store_anew("rates/results", found)
            output = json.loads(study("status", "rates", "--json")[0])
            self.assertEqual([arm["rate"] for arm in output[0]["arms"].values()], [best, best])

    def test_noise_of_a_config(self):
        at = testing.run().parent
        (at / "noisy.json").write_text(json.dumps({**SCALE["config"], "train": {**SCALE["config"]["train"], "steps": 20}}))
        words = ["--config", "noisy.json", "--data", "data", "--out", "noise", "--seeds", 2, "--jobs", 1]
        output, errors, status = study("noise", *words)
        self.assertEqual(status, 0, errors)
        self.assertIn(" nats per token, 2 seeds", output)
        facts = json.loads((at / "noise" / "noise-noisy" / "summary.json").read_text())
        losses = np.array([arm["causal"][-1] for arm in facts["arms"]])
        self.assertLess(np.abs(losses[0] - losses[1]).max(), np.abs(losses[0, 0] - losses[0, 1]))  # rounding, seeds
        self.assertIn(f"seeds {np.std(losses[0], ddof=1):.4f} ", output)

    def test_a_search_that_lacks_a_rate_leaves_no_verdict(self):
        at = testing.run().parent
        found = stored("whole/results")
        store_anew("lacks/results", {name: one for name, one in found.items()
                                     if not (name.startswith("gshard_top2-") and "-r0.06-s1-" in name)})  # fmt: skip
        kept = json.loads((at / "whole" / "two-scale" / "study.json").read_text())
        (at / "lacks" / "two-scale").mkdir()
        changed = {**kept, "store": str(at / "lacks" / "results")}
        (at / "lacks" / "two-scale" / "study.json").write_text(json.dumps(changed))
        study("report", "lacks")
        claims = json.loads((at / "lacks" / "two-scale" / "summary.json").read_text())["claims"]
        for claim, involved in zip(claims, (True, True, False, True, False)):
            message = claim["verdict"] == "not measured: the search for learning rates lacks top-2 at 0.06"
            self.assertEqual(message, involved, claim)
        self.assertIn("0.06: missing", (at / "lacks" / "two-scale" / "report.html").read_text())

    def test_two_at_once_are_refused(self):
        at = testing.run().parent / "locked"
        (at / "runs").mkdir(parents=True)
        with open(at / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write("4711\n")
            lock.flush()
            _, errors, status = run("locked")
        self.assertEqual(status, 1)
        self.assertIn("locked: process 4711 is using it", errors)
        self.assertEqual(sorted(path.name for path in at.iterdir()), ["lock", "runs"])

    def test_a_damaged_study_is_named(self):
        file = testing.run().parent / "whole" / "two-scale" / "study.json"
        kept = json.loads(file.read_text())
        without = {**kept, "data_facts": {"hash": "1"}}
        claims = [{**kept["recipe"]["claims"][0], "rival": "tor-2"}]
        other = {**kept, "recipe": {**kept["recipe"], "claims": claims}}
        for damaged in ([], {"format": "choir-study"}, {**kept, "seeds": "4"}, {**kept, "format": "x"}, without, other):
            file.write_text(json.dumps(damaged))
            _, errors, status = study("status", "whole")
            self.assertEqual(status, 1, errors)
            self.assertRegex(errors, "^choir study: .*study.json: ")
        file.write_text(json.dumps(kept))

    def test_damaged_times_are_named(self):
        file = testing.run().parent / "whole" / "two-scale" / "time.json"
        whole = file.read_text()
        for damaged in (whole[:-9], "[]", '{"arms": 3}'):
            file.write_text(damaged)
            out, errors, status = study("report", "whole")
            self.assertEqual(status, 1, errors)
            self.assertRegex(errors, "^choir study: .*time.json: ")
        file.write_text(whole)

    def test_fine_tuning(self):
        at = testing.run().parent
        (at / "glue" / "RTE").mkdir(parents=True)
        row = "{}\tIt rains.\tIt is wet.\tentailment\n{}\tIt rains.\tIt is dry.\tnot_entailment\n"
        rows = "".join(row.format(i, i) for i in range(8))
        for part in ("train", "dev"):
            (at / "glue" / "RTE" / f"{part}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + rows)
        shutil.copytree(at / "glue" / "RTE", at / "glue" / "MINE")  # a task that a file describes
        mine = json.loads((recipe.ROOT / "tasks" / "RTE.json").read_text())
        (at / "mine.json").write_text(json.dumps({**mine, "name": "MINE"}))
        claim = {"text": "EC is above.", "kind": "accuracy", "arm": "EC", "rival": "top-2"}
        claims = [claim, {**claim, "kind": "probe"}]
        tuned = {**RECIPE, "name": "tuned", "tune": {"tasks": ["RTE", "CB", "mine.json"]}, "claims": claims}
        (at / "tuned.json").write_text(json.dumps(tuned))
        (at / "tuning.json").write_text(json.dumps({**SCALE, "tune": {"steps": 4, "evaluations": 4}}))
        words = ("run", "tuned.json", "--data", "data", "--out", "whole", "--scale", "tuning.json", "--tasks", "glue")
        out, errors, status = study(*words)
        self.assertEqual(status, 0, errors)
        self.assertIn("no files of CB; skipped", out)
        found = stored("whole/results")
        rte = [(len(one["accuracy"]), one["probe"]) for name, one in found.items() if name.startswith("tuned-RTE-")]
        self.assertEqual(rte, [(4, 1.0)] * 4)
        self.assertEqual(sum(name.startswith("tuned-MINE-") for name in found), 4)
        summary = json.loads((at / "whole" / "tuned-tuning" / "summary.json").read_text())
        self.assertNotIn("not measured", [claim["verdict"] for claim in summary["claims"]])
        table = (at / "whole" / "tuned-tuning" / "table.md").read_text()
        self.assertIn("| task | EC | top-2 |\n| --- | --: | --: |\n| RTE | 100.0 | 100.0 |", table)
        (at / "glue" / "RTE" / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + rows[:100])
        self.assertIn("was measured on other files", study(*words)[1])
        (at / "whole" / "results" / "tuned.jsonl").unlink()  # other tests compare the directory's contents

    def test_by_topk_has_all_options_but_those_of_the_choice(self):
        """Every option of expert choice, set to another value than its default, is carried over, refused by name, or one
        by which it chooses."""
        at = testing.run().parent / "by-topk"
        at.mkdir()
        carried = set()
        for field in choir.Config.router_options("expert_choice"):
            option = field.key.rpartition(".")[2]
            other = (not field.default if field.type is bool else field.words[field.words[0] == field.default]
                     if field.words else field.default + 1 if field.type is int else 3.0 if field.default > 1 else 0.5)  # fmt: skip
            more = {"objective": "masked_diffusion", "attention": "bidirectional", "pool": "sequence"}
            fields = {**(more if option == "capacity_schedule" else {}), field.key: other}
            config = choir.Config(layers=2, d_model=16, d_hidden=16, heads=1, experts=4, vocab_size=32, sequence_length=8,
                                  batch_sequences=2, **fields)  # fmt: skip
            choir.Model(config).save(at / option)
            try:
                made = foreign.by_topk(at / option).config
            except choir.ArgumentError as error:
                self.assertIn(field.key, str(error))
                continue
            if option not in foreign.CHOICE:
                self.assertEqual(made[field.key], other, option)
                carried.add(option)
        self.assertLessEqual({"normalize_gates", "score", "gate_on", "z_loss_weight"}, carried)

    def test_texts(self):
        at = testing.run().parent
        (at / "texts").mkdir()
        (at / "texts" / "rain.txt").write_text("It rains and it is wet. " * 200)
        claims = [
            {"text": "Top-K costs little.", "kind": "text", "texts": ["rain", "held-out"], "arm": "EC",
             "routing": "topk", "rival": "EC", "margin": 2},
            {"text": "EC is lower.", "kind": "text", "texts": ["rain"], "arm": "EC", "rival": "top-2"},
        ]  # fmt: skip
        words = ("run", "read.json", "--data", "data", "--out", "whole", "--scale", "scale.json", "--texts", "texts")
        (at / "read.json").write_text(json.dumps({**RECIPE, "name": "read", "claims": claims,
                                                  "topk": True, "sequences": 16,
                                                  "texts": {"rain": "rain", "held-out": "home"}}))  # fmt: skip
        kept = results("whole")
        (gone,) = (at / "whole" / "runs").glob("expert_choice-*-s2-40-*")  # the store keeps its result
        shutil.rmtree(gone)
        out, errors, status = study(*words)
        self.assertEqual(status, 0, out + errors)
        self.assertTrue((gone / "checkpoints" / "00000040").is_dir())
        self.by_topk_is_forced_routing(gone)
        files = sorted(name for name in results("whole") if name.startswith("texts-"))
        self.assertEqual({key: one for key, one in results("whole").items() if not key.startswith("texts-")}, kept)
        found = [stored("whole/results")[name]["texts"] for name in files]
        self.assertEqual([sorted(one["rain"]) for one in found], [["batch", "hash", "threshold", "topk"]] * 2
                         + [["batch", "hash", "threshold"]] * 2)  # fmt: skip
        summary = json.loads((at / "whole" / "read-scale" / "summary.json").read_text())
        rain = [one["rain"] for one in found]
        self.assertAlmostEqual(summary["claims"][1]["mean"], sum(
            rain[2 + i]["threshold"]["loss"] - rain[i]["threshold"]["loss"] for i in range(2)) / 2, 9)  # fmt: skip
        self.assertAlmostEqual(summary["claims"][0]["mean"], sum(
            one[text]["threshold"]["loss"] - one[text]["topk"]["loss"]
            for one in found[:2] for text in ("rain", "held-out")) / 4, 9)  # fmt: skip
        self.assertIn("| EC, topk |", (at / "whole" / "read-scale" / "table.md").read_text())
        self.a_removed_routing_stays_readable(files[0], words)
        (at / "texts" / "rain.txt").write_text("It snows. " * 200)
        self.assertIn("was measured on another text 'rain'", study(*words)[1])
        (at / "texts" / "rain.txt").unlink()
        self.assertIn("rain.txt: no such file", study(*words)[1])
        (at / "whole" / "results" / "read.jsonl").unlink()  # other tests compare the directory's contents

    def a_removed_routing_stays_readable(self, name, words):
        """Version 0.5 stored losses by routing "adaptive", too: reports show them as before."""
        path = testing.run().parent / "whole" / "results" / "read.jsonl"
        kept = path.read_text()
        lines = [json.loads(line) for line in kept.splitlines()]
        for line in lines:
            if line["name"] == name:
                line["result"]["texts"]["rain"]["adaptive"] = {**line["result"]["texts"]["rain"]["threshold"], "loss": 7.125}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        out, errors, status = study(*words)
        self.assertEqual(status, 0, out + errors)
        self.assertIn("| EC, adaptive | 7.125 | - |", (path.parents[1] / "read-scale" / "table.md").read_text())
        path.write_text(kept)

    def by_topk_is_forced_routing(self, run):
        """Of each token's two best experts, layer after layer, whatever its gates are."""
        tokens, at = np.arange(64, dtype=np.int32).reshape(2, 32), testing.run().parent / "forced-topk"
        at.mkdir()
        np.save(at / "tokens.npy", tokens)
        for field, value in (("pool", "batch"), ("normalize_gates", True), ("score", "sigmoid"), ("gate_on", "input")):
            config = choir.Model.load(run).config
            config.set(f"router.{field}", value)
            model = choir.Model(config, seed=1)
            model.save(at / field)
            made = foreign.by_topk(at / field)
            made.save(at / f"{field}-topk")
            testing.program("forward", at / f"{field}-topk", at / "tokens.npy", "--save-routes", at / f"{field}.npy")
            taken = np.load(at / f"{field}.npy")
            self.assertEqual(set(taken.sum(-1).ravel()), {2}, field)
            np.testing.assert_array_equal(made.forward(tokens).logits, model.forward(tokens, assignment=taken).logits, field)

    def test_a_failed_run_leaves_the_others(self):
        at = testing.run().parent
        (name,) = (path.name for path in (at / "whole" / "trunks").glob("gshard_top2-*-s2-*"))
        (at / "broken" / "trunks" / name).mkdir(parents=True)
        (at / "broken" / "trunks" / name / "config.json").write_text("{}")
        out, _, status = run("broken")
        self.assertEqual(status, 1)
        self.assertRegex(out, "failed: top-2: .*config.json")
        missing = set(results("whole")) - set(results("broken"))
        self.assertEqual(["-s2-" in one for one in missing], [True, True])


class Probe(unittest.TestCase):
    def test_rows_of_both_layouts(self):
        at = testing.run().parent / "probed"
        at.mkdir()
        (at / "dev.tsv").write_text('x1\t0\t*\tThe "box\nx1\t1\t\t He ran.\nx1\tbad\t\tNo.\nshort\t1\n')
        (at / "val.jsonl").write_text('{"passage": "p", "question": "q", "label": true}\n{"passage": "", "label": false}\n')
        cola, boolq = (recipe.read(recipe.ROOT / "tasks" / f"{name}.json") for name in ("CoLA", "BoolQ"))
        found, labels = probe.texts({**cola, "template": "<{sentence}>"}, at, "dev")
        self.assertEqual((found, list(labels)), (['<The "box>', "<He ran.>"], [0, 1]))
        found, labels = probe.texts({**boolq, "template": "{passage}/{question}"}, at, "dev")
        self.assertEqual((found, list(labels)), (["p/q"], [1]))
        with self.assertRaisesRegex(StudyError, "probed: has none of train.tsv"):
            probe.texts(cola, at, "train")

    def test_the_fit_is_that_of_statsmodels(self):
        rng = np.random.default_rng(3)
        x = rng.normal(size=(400, 5))
        y = (x @ rng.normal(size=(5, 3)) + rng.gumbel(size=(400, 3))).argmax(axis=1)
        with unittest.mock.patch.object(probe, "RIDGE", 0.0):
            made = probe.fit(x, y, 3)
        wanted = MNLogit(y, np.column_stack([x, np.ones(400)])).fit(disp=0).params
        np.testing.assert_allclose(made[:, 1:] - made[:, :1], wanted, atol=2e-3)
        with unittest.mock.patch.object(probe, "RIDGE", 1e6):  # leaves intercepts alone: how common labels are
            shares = np.exp(probe.fit(x, y, 3)[-1])
        np.testing.assert_allclose(shares / shares.sum(), np.bincount(y) / 400, atol=1e-3)

    def test_features_are_hidden_states(self):
        model = choir.Model.load(testing.run(), threads=1)
        model.routing = "threshold"
        texts = ["Who rained?", "It rains and it is wet because it rains.", "x"] * 20
        made = probe.features(model, texts)
        d = made.shape[1] // 2
        head = model.get("head.weight" if "head.weight" in model.parameters() else "embed.weight")
        for text, hidden in zip(texts[:3], made):
            ids = model.tokenizer.encode(text)[None, -model.config["train.sequence_length"] :]
            logits = model.forward(np.repeat(ids, 32, axis=0)).logits[0]
            np.testing.assert_allclose(head @ hidden[d:], logits[-1], atol=1e-4)
            np.testing.assert_allclose(head @ hidden[:d], logits.mean(axis=0), atol=1e-4)


class Ends(unittest.TestCase):
    """How a study ends that cannot go on."""

    def test_closed_output_ends_the_program(self):
        with study("list", wait=False) as process:
            process.stdout.close()
            self.assertEqual((process.stderr.read(), process.wait()), ("", 128 + signal.SIGPIPE))
        with run("unread", wait=False) as process:
            self.assertIn("scale: ", process.stdout.readline())
            process.stdout.close()
            self.assertNotIn("Traceback", process.stderr.read())
            self.assertEqual(process.wait(), 3)  # saved, as after Ctrl-C
        self.assertTrue((testing.run().parent / "unread" / "two-scale" / "report.html").exists())

    def test_impossible_tasks_are_reported(self):
        class Fails(jobs.Work):
            arms, steps, flops = ["wrong"], 1, 1.0

            def run(self, threads, report):
                raise choir.UnsupportedError("cannot be")

        with unittest.mock.patch("signal.signal"), redirect_stdout(io.StringIO()) as caught:
            all_of_them = jobs.Jobs(Runner(), 1, math.inf)
            all_of_them.run("works", [Fails(), Fails()])
        self.assertEqual((all_of_them.failed, caught.getvalue()), (["wrong"] * 2, "failed: wrong: cannot be\n" * 2))

    def test_the_file_that_cannot_be_made_is_named(self):
        out, errors, status = run("/proc/none")
        self.assertEqual((status, out), (1, ""))
        self.assertRegex(errors, "^choir study: /proc/none.*: No such file or directory\n$")


class Hostile(unittest.TestCase):
    """Directories that somebody else made, or that hold what is the user's: refused, and nothing outside is touched."""

    def setUp(self):
        self.at = testing.run().parent / self.id().rpartition(".")[2]
        self.at.mkdir()

    def other(self, name="two-scale", **changes):
        """A study of somebody else: one whose runs are made, with another study.json."""
        own = self.at / "st" / name
        own.mkdir(parents=True)
        facts = {"hash": testing_hash(), "vocab_size": 320, "train_tokens": 1000, "heldout_tokens": 100}
        kept = {"format": "choir-study", "recipe": RECIPE, "scale": {"name": "scale", **SCALE}, "data": "data", "store": "s",
                "data_facts": facts, "seeds": 2, "budgets": [5120]}  # fmt: skip
        (own / "study.json").write_text(json.dumps({**kept, **changes}))
        return own

    def refused(self, *words, message):
        out, errors, status = study(*words)
        self.assertEqual((status, "Traceback" in errors), (1, False), errors)
        self.assertRegex(errors, f"^choir study: .*{message}")

    def test_names_do_not_lead_elsewhere(self):
        own, victim = self.other(scale={"name": "sc/../../victim", **SCALE}), self.at / "victim"
        victim.mkdir()
        (victim / "report.html").write_text("precious")
        study("report", self.at / "st")
        self.assertEqual([(path.name, path.read_text()) for path in victim.iterdir()], [("report.html", "precious")])
        self.assertTrue((own / "report.html").exists())  # where it was asked to
        (testing.run().parent / "away.json").write_text(json.dumps({"name": "../../victim"}))
        tuned = {**RECIPE, "name": "tuned", "tune": {"tasks": ["away.json"]}}
        (own / "study.json").unlink()
        self.other("tuned", recipe=tuned, scale={"name": "scale", **SCALE, "tune": {"steps": 4, "evaluations": 4}})
        self.refused("report", self.at / "st", message="task away.json: its name is '../../victim'")

    def test_links_are_not_followed(self):
        own, victim = self.other(), self.at / "victim"
        victim.mkdir()
        (victim / "file").write_text("precious")
        for name in ("report.html", "table.md", "summary.json"):
            (own / name).symlink_to(victim / "file")
            self.refused("report", self.at / "st", message="is a symbolic link")
            (own / name).unlink()
        shutil.rmtree(own / "figures")
        (own / "figures").symlink_to(victim)
        self.refused("report", self.at / "st", message="figures: is a symbolic link")
        for name in ("runs", "configs", "logs"):
            (self.at / "other" / name).parent.mkdir()
            (self.at / "other" / name).symlink_to(victim)
            self.assertIn(f"{name}: is a symbolic link", run(self.at / "other")[1])
            shutil.rmtree(self.at / "other")
        own.rename(self.at / "moved")
        own.symlink_to(self.at / "moved")
        self.refused("report", self.at / "st", message="is a symbolic link")
        self.assertEqual([(path.name, path.read_text()) for path in victim.iterdir()], [("file", "precious")])

    def test_a_lock_that_is_not_ours_stays(self):
        for number, words in enumerate(("precious", "4711\n")):  # the latter in a directory that holds no study
            out = self.at / str(number)
            out.mkdir()
            if not number:
                (out / "runs").mkdir()
            (out / "lock").write_text(words)
            self.assertRegex(run(out)[1], "lock: is there, and ")
            self.assertEqual((out / "lock").read_text(), words)
        (out / "runs").mkdir()
        (out / "lock").rename(self.at / "file")
        for link in (os.symlink, os.link):
            link(self.at / "file", out / "lock")
            self.assertRegex(run(out)[1], "lock: (is a symbolic link|has 2 hard links)")
            (out / "lock").unlink()
        self.assertEqual((self.at / "file").read_text(), "4711\n")

    def test_endless_files_are_refused(self):
        own = self.other()
        (own / "study.json").unlink()
        os.mkfifo(own / "study.json")
        self.refused("status", self.at / "st", message="is a pipe")
        (own / "study.json").unlink()
        (own / "study.json").symlink_to("/dev/zero")
        self.refused("status", self.at / "st", message="is a symbolic link")
        (own / "study.json").unlink()
        with open(own / "study.json", "w") as file:
            file.truncate(1 << 40)
        self.refused("status", self.at / "st", message="has more than")
        os.mkfifo(self.at / "config.json")
        (own / "study.json").unlink()
        self.other("pipe", scale={"name": "scale", **SCALE, "config": str(self.at / "config.json")})
        self.refused("report", self.at / "st", message="config.json: is a pipe")

    def test_names_that_no_report_could_say(self):
        for name in (b"line\nend", b"z\xff"):
            self.assertRegex(run(os.path.join(os.fsencode(self.at), name).decode(errors="surrogateescape"))[1],
                             "--out .* cannot be printed")  # fmt: skip
        self.assertEqual(list(self.at.iterdir()), [])
        (scale := self.at / os.fsdecode(b"z\xff.json")).write_text("{}")
        self.assertRaisesRegex(StudyError, "has characters that cannot be printed", recipe.load_scale, str(scale))

    def test_directories_of_checkpoints_that_are_none(self):
        (self.at / "checkpoints" / "²").mkdir(parents=True)
        self.assertEqual(lane.newest(self.at), 0)


class Handover(unittest.TestCase):
    def test_the_program_hands_over(self):
        environment = {**os.environ, "CHOIR_PYTHON": sys.executable}
        environment.pop("PYTHONPATH")
        said = subprocess.run(
            [os.environ["CHOIR_PROGRAM"], "study", "status", "nowhere"], env=environment, capture_output=True, text=True
        )
        self.assertEqual((said.returncode, said.stdout), (1, ""))
        self.assertIn("choir study: nowhere: contains no study", said.stderr)

    def test_what_was_meant_is_suggested(self):
        here = ["--data", "d", "--out", "o"]
        for words, meant in (
            (["lst"], "list"), (["run", "pair", *here, "--sceds", "3"], "--seeds"), (["run", "pari", *here], "pair"),
            (["run", "pair", *here, "--scale", "picoo"], "pico"),
        ):  # fmt: skip
            _, said, status = study(*words)
            self.assertGreater(status, 0)
            self.assertIn(f"did you mean '{meant}'?", said)

    def test_lines_fit_a_terminal(self):
        output, _, status = study("list", columns=80)
        self.assertEqual(status, 0)
        self.assertLess(50, len(output.splitlines()))
        self.assertEqual([line for line in output.splitlines() if len(line) > 80], [])

    def test_missing_runs_are_named(self):
        for python, message in (("/absent/python", "/absent/python: cannot be started"), (__file__, "cannot be started")):
            environment = {**os.environ, "CHOIR_PYTHON": python}
            words = [os.environ["CHOIR_PROGRAM"], "study", "list"]
            said = subprocess.run(words, env=environment, capture_output=True, text=True)
            self.assertEqual(said.returncode, 1)
            self.assertIn(message, said.stderr)


class Store(unittest.TestCase):
    def setUp(self):
        self.at = testing.run().parent
        self.store = store.Store(self.at / f"store-{self.id()}")
        self.config = json.loads((testing.run() / "config.json").read_text())
        self.hash = testing_hash()

    def test_locks_are_released(self):
        made = self.store.put(testing.run(), self.config, self.hash)
        self.assertEqual(self.store.take(self.config, self.hash), made)
        self.assertLess(os.path.getsize(self.store.file), 8000)
        self.assertEqual(made["final"]["causal"]["routing"], "threshold")
        self.config["model"]["name"] = "another"  # which no result depends on
        self.config["train"]["checkpoint_every"] = 7
        self.assertIsNotNone(self.store.take(self.config, self.hash))

    def test_a_line_that_was_not_finished(self):
        made = self.store.put(testing.run(), self.config, self.hash)
        with open(self.store.file, "a") as file:
            file.write('{"name":"x","resu')  # as where the power went
        self.assertEqual(self.store.take(self.config, self.hash), made)
        self.store.add("y", {"later": 1})
        self.store.add("y", {"later": 2})
        self.assertEqual(self.store.get("y"), {"later": 2})
        self.assertEqual(len(self.store.file.read_text().splitlines()), 3)
        (self.store.directory / "z.json").write_text('{"earlier": 1}')  # what versions before JSON lines left
        self.assertEqual(self.store.get("z"), {"earlier": 1})

    def test_committed_results_keep_their_names(self):
        """A field that configs get later must not hide what was computed before."""
        every = store.Store(pathlib.Path(__file__).parents[2] / "lab/results")._all()
        for name, one in every.items():
            if name.startswith("tuned-"):
                parent, key = name[len(f"tuned-{one['settings']['task']}-") :].rsplit("-", 1)
                result = every[parent]
                self.assertEqual(store.checksum(result["config"], result["data_hash"], one["settings"]), key)
            elif name.startswith("texts-"):
                self.assertEqual(one["format"], "choir-texts")
                self.assertIn(name.removeprefix("texts-"), every)
            else:
                self.assertEqual(store.name(one["config"], one["data_hash"]), name)
                last = name, one
        self.assertGreater(len(every), 800)
        given = self.at / f"{self.id()}.json"
        given.write_text(json.dumps(last[1]["config"]))
        testing.program("init", given, "--out", given.with_suffix(""))
        today = json.loads((given.with_suffix("") / "config.json").read_text())
        self.assertEqual(store.name(today, last[1]["data_hash"]), last[0])

    def test_it_refuses_a_run_of_another_config_or_data(self):
        self.config["train"]["learning_rate"] = 0.07
        with self.assertRaisesRegex(StudyError, "train.learning_rate is 0.05 instead of 0.07"):
            self.store.put(testing.run(), self.config, self.hash)
        self.config["train"]["learning_rate"] = 0.05
        with self.assertRaisesRegex(StudyError, "data_hash is .* instead of .0000"):
            self.store.put(testing.run(), self.config, "0000")
        self.assertFalse(self.store.directory.exists())

    def test_changed_results_are_refused(self):
        whole = self.store.put(testing.run(), self.config, self.hash)
        name = store.name(self.config, self.hash)
        for key, value in (("data_hash", "1"), ("config", {}), ("format", "x")):
            self.store.add(name, {**whole, key: value})
            with self.assertRaisesRegex(StudyError, name):
                self.store.take(self.config, self.hash)
        for part, key in (("causal", "loss"), ("own", "histogram")):  # as a flipped bit leaves a name
            changed = json.loads(json.dumps(whole))
            changed["final"][part][key + "?"] = changed["final"][part].pop(key)
            self.store.add(name, changed)
            with self.assertRaisesRegex(StudyError, f"{name}: final.{part}"):
                self.store.take(self.config, self.hash)
        for line in ("{", '{"name": "x"}', '{"name": "x", "result": NaN}', "[]"):
            self.store.file.write_text(line + "\n")
            with self.assertRaisesRegex(StudyError, f"{self.store.file.name}:1: "):
                self.store.take(self.config, self.hash)


def testing_hash():
    return json.loads(testing.program("data", "info", testing.run().parent / "data", "--json"))["hash"]


class Recipes(unittest.TestCase):
    def test_all_that_come_with_choir(self):
        self.assertGreaterEqual(len(recipe.names()), 10)
        for name in recipe.names():
            one = recipe.load(name)
            for arm in recipe.arms(one):
                for scale in ("pico", "nano", "small", "0.1b"):
                    made = configs.config(one, recipe.load_scale(scale), arm, 4096)
                    masked = made["train.objective"] != "next_token"  # then the mask is one token more
                    self.assertEqual(made["model.vocab_size"], 4097 if masked else 4096, arm.name)

    def test_common_settings_hold_for_all_arms(self):
        """Another router begins with its own defaults, which are none of the recipe's."""
        one = {**RECIPE, "set": {"router.normalize_gates": True, "router.capacity_factor": 3}}
        for arm in recipe.arms(one):
            made = configs.config(one, SCALE, arm, 64)
            self.assertEqual((made["router.normalize_gates"], made["router.capacity_factor"]), (True, 3), arm.name)

    def test_every_planned_field_stands_in_the_config(self):
        """Of all recipes: what the recipe and the arm set, and the factors on what there would be without them."""
        scale, fields = recipe.load_scale("pico"), 0
        for name in recipe.names():
            one = recipe.load(name)
            for arm in recipe.arms(one):
                bare = tuple({"set": change.get("set", {})} for change in arm.changes)
                made, whole = (configs.config(one, scale, a, 4096) for a in (arm, dataclasses.replace(arm, changes=bare)))
                factors = {key for change in arm.changes for key in change.get("times", {})}
                wanted = dict(one.get("set", {}))
                for change in arm.changes:
                    wanted.update(change.get("set", {}))
                for key in factors:
                    factor = math.prod(change.get("times", {}).get(key, 1) for change in arm.changes)
                    old = whole[key] or made["model.d_hidden"]
                    wanted[key] = round(old * factor)
                for key, value in wanted.items():
                    fields += 1
                    if key == "model.d_expert" and value == made["model.d_hidden"]:
                        value = 0  # as 0 says
                    self.assertEqual(made[key], value, f"{name}, {arm.name}: {key}")
        self.assertGreater(fields, 400)

    def test_a_router_and_its_options_have_no_order(self):
        options = {"router.normalize_gates": True, "router.name": "quantile_balanced", "router.experts_per_token": 3}
        for order in itertools.permutations(options):
            for recipe_sets in range(len(order) + 1):  # the recipe the first ones, the arm the others
                one = {**RECIPE, "set": {key: options[key] for key in order[:recipe_sets]}, "claims": [],
                       "arms": [{"name": "a", "set": {key: options[key] for key in order[recipe_sets:]}}]}  # fmt: skip
                made = configs.config(one, SCALE, recipe.arms(one)[0], 64)
                self.assertEqual({key: made[key] for key in options}, options)
                made = configs.config({**one, "set": {}}, {**SCALE, "set": one["set"]}, recipe.arms(one)[0], 64)
                self.assertEqual({key: made[key] for key in options}, options)

    def test_a_config_that_is_not_as_planned_is_refused(self):
        whole = choir.Config.update

        def forgets(config, fields):
            whole(config, {key: value for key, value in fields.items() if not key.endswith("capacity_factor")})

        one = {**RECIPE, "set": {"router.capacity_factor": 3}}
        with unittest.mock.patch.object(choir.Config, "update", forgets):
            with self.assertRaisesRegex(StudyError, "arm 'EC': .*model.router.capacity_factor is 2.0 instead of 3"):
                configs.config(one, SCALE, recipe.arms(one)[0], 64)

    def test_settings_that_depend_on_the_run_length_are_refused(self):
        for key, value in (("train.schedule", "cosine"), ("train.warmup_steps", 0.1), ("router.capacity_start", 4)):
            one = {**RECIPE, "set": {key: value}}
            with self.assertRaisesRegex(StudyError, f"arm 'EC': .*{key} is {value}.*length of the whole run"):
                configs.config(one, SCALE, recipe.arms(one)[0], 64)

    def test_fields_set_by_the_study_are_refused(self):
        for key in ("train.learning_rate", "learning_rate", "rate", "train.steps", "seed", "cooldown_steps", "vocab_size"):
            message = key.replace("rate", "learning_rate") if key == "rate" else key
            self.refused(lambda r: r.update(set={key: 1}), "set: ", message, "is determined by the study")
            self.refused(lambda r: r["arms"][1].update(set={key: 1}), "arms[1] 'top-2': set: ", message)
            self.refused(lambda r: r["arms"][1].update(times={key: 2}), "arms[1] 'top-2': times: ", message)
            for how in ("set", "times"):
                sweep = {"label": "x", how: key, "values": [1, 2], "rate_of": 1}
                self.refused(lambda r: r.update(sweep=sweep, claims=[]), f"sweep: {how}: ", message)
            path = testing.run().parent / "wrong-scale.json"
            path.write_text(json.dumps({**SCALE, "set": {key: 1}}))
            with self.assertRaisesRegex(StudyError, f"wrong-scale.json: set: .*{message}.* is determined by the study"):
                recipe.load_scale(str(path))
        for key in ("steps", "train.eval_every", "eval_sequences", "seed"):
            self.refused(lambda r: r.update(tune={"tasks": ["RTE"], "set": {key: 1}}), "tune: set: ", key)
        self.refused(lambda r: r.update(batch_tokens=512, set={"batch_sequences": 4}), "from 'batch_tokens'")

    def test_a_scale_without_a_name_is_refused(self):
        own = testing.run().parent / "nameless"
        own.mkdir()
        facts = {"hash": "0", "vocab_size": 8, "train_tokens": 1, "heldout_tokens": 1}
        kept = {"format": "choir-study", "recipe": RECIPE, "scale": SCALE, "data": "data", "data_facts": facts,
                "store": "results", "seeds": 1, "budgets": [64]}  # fmt: skip
        (own / "study.json").write_text(json.dumps(kept))
        with self.assertRaisesRegex(StudyError, "study.json: scale: 'name' is a required property"):
            Study.open(own)

    def test_keys_of_fields_are_checked(self):
        self.refused(lambda r: r["arms"][1]["set"].update({"router.capp": 2}), "arms[1] 'top-2': set: ", "router.capp",
                     "did you mean 'router.cap'?")  # fmt: skip
        self.refused(lambda r: r["arms"][1]["set"].update({"experts": 4, "model.experts": 8}), "'model.experts'", "one field")
        sweep = {"label": "c", "set": "router.capacity_factor", "values": [1, 2], "rate_of": 1}
        self.refused(lambda r: (r.update(sweep=sweep, claims=[]), r["arms"][0]["set"].update(capacity_factor=2)),
                     "arms[0] 'EC': sets model.router.capacity_factor, which the sweep sets")  # fmt: skip

    def refused(self, change, *message):
        path = testing.run().parent / "wrong.json"
        wrong = json.loads(json.dumps(RECIPE))
        change(wrong)
        path.write_text(json.dumps(wrong))
        with self.assertRaises(StudyError) as caught:
            recipe.load(str(path))
        for text in ("wrong.json", *message):
            self.assertIn(text, str(caught.exception))

    def test_errors_name_the_field(self):
        self.refused(lambda r: r.update(seed=1), "seed")
        self.refused(lambda r: r["arms"].extend(r["arms"] * 128), "arms", "is too long")  # nobody waits for all of them
        self.refused(lambda r: r.update(title="a\x1b[2J"), "title", r"\x1b")
        self.refused(lambda r: r["arms"][1].update(name="a\u202eb"), "arms[1].name", r"\u202e")
        self.refused(lambda r: r["arms"][1].update(sets={}), "arms[1]", "sets", "did you mean 'set'?")
        self.refused(lambda r: r["arms"][1].update(name="EC"), "two arms are called 'EC'")
        self.refused(lambda r: r.update(sweep={"label": "c", "values": [1, 2], "rate_of": 1}), "sweep: changes no field")
        self.refused(lambda r: r["claims"][1].update(figure=0), "claims[1]", "'steps' compares ratios, which must be above 0: 0")
        self.refused(lambda r: r["claims"][0].update(kind="los"), "claims[0].kind", "los")
        self.refused(lambda r: r["claims"][0].update(rival="top-3"), "claims[0].rival", "top-3")
        self.refused(lambda r: r["claims"][0].pop("rival"), "claims[0]", "needs a rival")
        self.refused(lambda r: r["claims"][0].update(rival=r["claims"][0]["arm"]), "claims[0]", "its own rival")
        self.refused(lambda r: r["arms"][0].update(rate_of="x"), "rate_of")
        self.refused(lambda r: r["claims"][4].update(margin=float("nan")), "NaN is not a finite number")
        self.refused(lambda r: r["claims"][4].update(margin=-float("inf")), "-Infinity is not a finite number")
        path = pathlib.Path(testing.run().parent / "wrong.json")
        for text, message in (('{"name": "a", "name": "b"}', "twice"), ('{"name": 1e400}', "1e400 is not a finite number")):
            path.write_text(text)
            with self.assertRaisesRegex(StudyError, f"wrong.json.*{message}"):
                recipe.load(str(path))


if __name__ == "__main__":
    unittest.main()
