"""The statistics of studies, against SciPy, statsmodels and worked examples, and by simulation."""

import functools
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

import numpy as np

try:
    from scipy import stats
    from statsmodels.stats.power import TTestPower

    from choir.study import StudyError, claims, jobs, lane, noise, report, statistics, store, tuned
    from choir.study.statistics import Estimate
    from choir.study.study import Study
except ImportError as error:
    raise unittest.SkipTest(str(error)) from error


class Estimates(unittest.TestCase):
    def test_a_mean_is_scipys(self):
        values = [4.1, 3.9, 4.4, 4.0]
        made, wanted = statistics.of_values(values), stats.ttest_1samp(values, 4)
        np.testing.assert_allclose(made.p(4), wanted.pvalue, rtol=1e-12)
        np.testing.assert_allclose(made.interval(), wanted.confidence_interval(), rtol=1e-12)
        np.testing.assert_allclose(made.detectable(), statistics.detectable(np.std(values, ddof=1), 4, 3))
        self.assertEqual(statistics.of_values([*values, math.nan]), made)
        same = statistics.of_values([2.0, 2.0])
        self.assertEqual((same.p(2.0), same.p(1.0)), (1, 0))

    def test_two_arms_are_a_paired_t_test(self):
        rng = np.random.default_rng(1)
        table = rng.normal(size=(2, 7)) + 5 * rng.normal(size=7)
        made, wanted = statistics.contrast(table, [1, -1]), stats.ttest_rel(*table)
        np.testing.assert_allclose(made.p(), wanted.pvalue, rtol=1e-9)
        np.testing.assert_allclose(made.interval(), wanted.confidence_interval(), rtol=1e-9)
        self.assertEqual(made.freedom, 6)

    def test_a_block_design_by_hand(self):
        table = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 5.0], [0.0, 4.0, 8.0]])
        rest = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
        made = statistics.contrast(table, [-1, 1, 0])
        np.testing.assert_allclose(made.mean, 1, rtol=1e-12)
        np.testing.assert_allclose(made.error, math.sqrt(2 * (rest**2).sum() / 4 / 3), rtol=1e-9)
        self.assertEqual(made.freedom, 4)

    def test_chaos_is_a_floor(self):
        table = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
        self.assertEqual(statistics.contrast(table, [1, -1]).error < 1e-12, True)
        np.testing.assert_allclose(statistics.contrast(table, [1, -1], 0.3).error, 0.3 / math.sqrt(3), rtol=1e-9)

    def test_missing_runs(self):
        table = np.full((3, 4), np.nan)
        self.assertIsNone(statistics.contrast(table, [1, -1, 0]))
        table[:2, 0] = [2, 1]
        one = statistics.contrast(table, [1, -1, 0])
        self.assertEqual((one.mean, one.freedom, one.p()), (1, 0, 1))
        table[:2], table[2, 3] = [[1.0, 2.0, 3.0, np.nan], [1.1, 2.2, 3.1, np.nan]], 9
        self.assertIsNone(statistics.contrast(table, [-1, 0, 1]))  # 9: effects of arm and seed cannot be told apart
        np.testing.assert_allclose(statistics.contrast(table, [-1, 1, 0]).mean, 0.4 / 3)
        table[1, 2] = np.nan
        self.assertEqual(statistics.contrast(table, [-1, 1, 0]).count, 2)

    def test_intervals_cover(self):
        """Of 2,000 tables with runs missing and strong blocks, 95 % of intervals hold the truth."""
        rng = np.random.default_rng(2)
        held = 0
        for _ in range(2000):
            table = rng.normal(size=(5, 6)) + 3 * rng.normal(size=6) + np.array([0.7, 0, 0, 0, 0])[:, None]
            table[2, 3] = table[4, 1] = np.nan
            low, high = statistics.contrast(table, [1, 0, -1, 0, 0]).interval()
            held += low <= 0.7 <= high
        self.assertLess(abs(held / 2000 - 0.95), 0.015)

    def test_sums(self):
        a, b = [1.0, 1.3, 0.9, 1.4], [2.0, 2.1, 2.6]
        made = statistics.total(statistics.of_values(a), statistics.of_values([-v for v in b]))
        np.testing.assert_allclose(made.p(), stats.ttest_ind(a, b, equal_var=False).pvalue, rtol=1e-9)
        self.assertEqual(made.count, 3)
        self.assertEqual(statistics.total(made, statistics.of_values([1.0])).p(), 1)  # of one alone nothing is known

    def test_holm(self):
        np.testing.assert_allclose(statistics.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
        self.assertEqual(statistics.holm([]), [])

    def test_within(self):
        one = Estimate(0.0, 1.0, 10, 11)
        np.testing.assert_allclose(one.p_side(-1, 2), stats.t.sf(1, 10))
        np.testing.assert_allclose(Estimate(4.0, 1.0, 10, 11).p_side(-1, 2), 2 * stats.t.sf(2, 10))
        np.testing.assert_allclose(Estimate(4.0, 1.0, 10, 11).p_side(-5, -1), 2 * stats.t.sf(5, 10))
        self.assertEqual(Estimate(3.0, 0.0, 10, 11).p_side(-1, 2), 0)


class Power(unittest.TestCase):
    def test_it_is_statsmodels(self):
        for count in (3, 8, 20):  # by the noncentral t of SciPy 1.15, 2 is 3 % less
            wanted = TTestPower().solve_power(nobs=count, power=0.8, alpha=0.05)
            np.testing.assert_allclose(statistics.detectable(1, count, count - 1), wanted, rtol=1e-4)

    def test_every_freedom(self):
        effects = [statistics.detectable(1, 1, freedom) for freedom in (*range(1, 31), 100, math.inf)]
        self.assertEqual(effects, sorted(effects, reverse=True))
        np.testing.assert_allclose(effects[-1], stats.norm.ppf(0.975) + stats.norm.ppf(0.8), rtol=1e-5)

    def test_by_simulation(self):
        rng = np.random.default_rng(3)
        for count in (2, 8):
            effect = statistics.detectable(0.5, count, count - 1)
            seen = stats.ttest_1samp(rng.normal(effect, 0.5, (count, 20000)), 0).pvalue < 0.05
            self.assertLess(abs(seen.mean() - 0.8), 0.01)


class Curves(unittest.TestCase):
    steps = [1000, 2000, 4000, 8000]

    def test_known_speedup(self):
        """Losses that fall by 0.24 a doubling: an arm 0.024 below is 2^0.1 times sooner."""
        rival = [5 - 0.24 * math.log2(s) for s in self.steps]
        arm = [loss - 0.024 for loss in rival]
        np.testing.assert_allclose(statistics.log_speedup(self.steps, arm, rival), 0.1 * math.log(2), rtol=1e-9)
        np.testing.assert_allclose(statistics.log_speedup(self.steps, rival, arm), -0.1 * math.log(2), rtol=1e-9)

    def test_unreached_losses_are_not_extrapolated(self):
        rival = [5.0, 4.9, 4.8, 4.7]
        self.assertTrue(math.isnan(statistics.log_speedup(self.steps, [4.6, 4.5, 4.4, 4.3], rival)))
        self.assertTrue(math.isnan(statistics.steps_to(self.steps, rival, math.nan)))
        self.assertAlmostEqual(statistics.steps_to(self.steps, [5.0, 5.0, 4.0, 3.0], 5.0), 2000)

    def test_speedups_cover(self):
        rng = np.random.default_rng(4)
        rival = np.array([5 - 0.24 * math.log2(s) for s in self.steps])
        held = 0
        for _ in range(1000):
            pairs = [(rival - 0.024 + rng.normal(0, 0.004, 4), rival + rng.normal(0, 0.004, 4)) for _ in range(8)]
            made = statistics.of_values([statistics.log_speedup(self.steps, *pair) for pair in pairs])
            low, high = made.interval()
            held += low <= 0.1 * math.log(2) <= high
        self.assertLess(abs(held / 1000 - 0.95), 0.02)

    def test_rates(self):
        rates = [0.08, 0.02, 0.04]
        parabola = [(math.log(r) - math.log(0.05)) ** 2 for r in rates]
        best, vertex = statistics.best_rate(rates, parabola)
        self.assertEqual(best, 0.04)
        np.testing.assert_allclose(vertex, 0.05, rtol=1e-9)
        self.assertEqual(statistics.best_rate([1, 2, 3], [3, 2, math.nan]), (2, None))
        self.assertEqual(statistics.best_rate([1, 2, 4], [3, 2, 1.5])[1], None)  # lower still beyond 4
        np.testing.assert_allclose(statistics.best_rate([1, 2, 4], [3, 1.1, 1])[1], 2 ** 1.5, rtol=0.2)  # not beyond
        weights = statistics.parabola_weights([0.3, *rates], [math.nan, *(p + 7 for p in parabola)])
        np.testing.assert_allclose([weights.sum(), weights[1:] @ parabola, weights[0]], [1, 0, 0], atol=1e-12)


class Numbers(unittest.TestCase):
    def test_of_layers(self):
        """By hand; whole runs only tell that there are numbers."""
        layers = [
            {"tokens": 10, "histogram": [2, 6, 2], "assignments": 10, "dropped": 2, "capacity": 4, "demand": [5, 7],
             "gate_mass": 0.4},
            {"tokens": 10, "histogram": [1, 9], "assignments": 9, "dropped": 0, "capacity": 5, "demand": [5, 4],
             "gate_mass": 0.8},
        ]  # fmt: skip
        made = store._routing(layers)
        self.assertEqual(made.pop("histogram"), [0.15, 0.75, 0.1])
        fullest = (7 * 2 / 12 + 5 * 2 / 9) / 2
        wanted = {"experts_per_token": 19 / 20, "dropped": 2 / 21, "over_capacity": 4 / 21, "fullest": fullest,
                  "gate_sum": 0.6}  # fmt: skip
        self.assertEqual(made.keys(), wanted.keys())
        for key, value in wanted.items():
            self.assertAlmostEqual(made[key], value, msg=key)

    def test_of_a_cap(self):
        capped = {"config": {"model": {"router": {"cap": 2}}}, "final": {"own": {"histogram": [0.1, 0.2, 0.3, 0.4]}}}
        self.assertEqual(report._cap([capped]), "70.0% / 40.0%")

    def test_of_fine_tuning(self):
        """The mean of the last three evaluations, in per cent."""
        study = types.SimpleNamespace(recipe={"tune": {"tasks": ["x"]}}, grid=lambda value: np.array([[value("a", 1)]]))
        found = {"accuracy": [0.1, 0.9, 0.5, 0.6, 0.7], "probe": 0.3}
        with unittest.mock.patch.object(tuned, "result", return_value=found):
            self.assertAlmostEqual(tuned.table(study, "accuracy")[0, 0], 60)
            self.assertAlmostEqual(tuned.table(study, "probe")[0, 0], 30)
        study.recipe["tune"]["tasks"] = ["x", "of one run", "of none"]
        each = [np.array([row]) for row in ([1.0, 2.0], [3.0, math.nan], [math.nan, math.nan])]
        with unittest.mock.patch.object(tuned, "_accuracies", side_effect=each):
            np.testing.assert_equal(tuned.table(study, "accuracy"), [[2, math.nan]])

    def test_of_a_trunk(self):
        self.assertEqual([lane.cooldown_steps(steps, 0.8) for steps in (1, 2, 7, 10)], [0, 1, 6, 8])


class Pages(unittest.TestCase):
    """Rows of a page by hand: two arms, two seeds."""

    def setUp(self):
        own = {"loss": 3.0, "experts_per_token": 1, "gate_sum": 0.5, "dropped": 0.1, "over_capacity": 0.25}
        final = {"own": own, "causal": {"loss": 4.0, "experts_per_token": 2, "gate_sum": 0.6, "tokens": 4096}}
        result = {"config": {"model": {"router": {"cap": 0}}}, "train_flops_per_token": 3e6, "final": final}
        config = {"train": {"batch_sequences": 50, "sequence_length": 1000, "accumulate": 2}}
        self.study = types.SimpleNamespace(
            arms=[types.SimpleNamespace(name=name) for name in "ab"], steps=[10, 20], seeds=2, rate=lambda arm: 0.02, lacking=lambda arm: {},
            scale={"name": "small", "rates": [0.01, 0.02], "deviation": 0.01, "chaos": 0.02}, _configs={"a": config},
            finals=lambda arm: [result] * 2, final=lambda arm, seed, steps: result,
            table=lambda steps, what="causal": np.array([[4.0, 4.2], [4.5, 4.6]]) - (what == "own"),
        )  # fmt: skip
        for name in ("apart", "grid", "step_tokens"):
            setattr(self.study, name, functools.partial(getattr(Study, name), self.study))

    def test_arms(self):
        row = report.arm_rows(self.study, {"b": [1.0, 3.0, 2.0]})[1]
        apart = "+0.4500 (-0.1853 to 1.0853)"
        self.assertEqual(row, ["b", "0.02", "4.5500 ± 0.0707", "3.5500 ± 0.0707", apart, "1.00 / 2.00", "0.50 / 0.60",
                               "-", "10.0%", "25.0%", "-", "3.00 M", "2.000"])  # fmt: skip
        self.assertEqual(Study.table.__wrapped__(self.study, 20, "own").tolist(), [[3, 3], [3, 3]])
        self.study.apart = lambda arm, steps: Estimate(0.45, math.inf, 0, 1)  # one seed: no interval
        self.assertEqual(report.arm_rows(self.study, {})[1][4], "+0.4500")

    def test_unequal_served_cost(self):
        """A verdict on an arm whose thresholds take other numbers of experts than its own routing says so."""
        finals = {
            name: [{"final": {"own": {"experts_per_token": 2.0}, "causal": {"experts_per_token": causal}}}]
            for name, causal in (("even", 2.1), ("odd", 2.73))
        }
        arms = [types.SimpleNamespace(name=name) for name in finals]
        study = types.SimpleNamespace(arms=arms, finals=finals.get)
        self.assertEqual(report.uneven(study), {"odd": (2.0, 2.73)})
        self.assertRegex(report.served(study), "not at equal FLOPs; experts per token: odd 2.00 in training and 2.73 served")
        for arm, rival, said in (("even", "odd", True), ("even", "even", False)):
            claim = types.SimpleNamespace(claim={"text": "t", "arm": arm, "rival": rival, "kind": "loss"}, estimate=None, verdict="confirmed")
            row = report.claim_rows(types.SimpleNamespace(findings=[claim], study=study))[0]
            self.assertEqual(row[-1], "confirmed, at unequal served cost" if said else "confirmed")

    def test_printed_conclusions(self):
        message = report.regime(self.study)
        self.assertTrue(message.startswith("small: 1, 2 M tokens, 100,000 per step; the learning rate falls over the last 20% of"), message)
        self.assertIn(" steps; 4,096 held-out tokens, the same for all; 2 seeds; learning rates tried at the largest budget: 0.01, 0.02", message)
        deviation = math.sqrt(2 * 0.0025)  # of 0.5 and 0.4, which pairs differ by
        self.assertIn(f" {statistics.detectable(deviation, 2, 1):.4f} nats per token (standard", report.power_seen(self.study))
        self.study.seeds, self.study.arms = 4, [*self.study.arms, None]
        self.assertIn(f" {statistics.detectable(0.02, 4, 6):.4f} nats per token (standard", report.power(self.study))
        claim = claims.Finding({"text": "t", "kind": "loss"}, Estimate(0.1, 0.1, 20, 8), 0.3, 0.6, "inconclusive")
        row = report.claim_rows(types.SimpleNamespace(findings=[claim], study=types.SimpleNamespace(arms=[])))[0]
        self.assertEqual(row[2:4], ["0.1000 (-0.1086 to 0.3086) nats", "0.3 / 0.6"])
        claim.claim.update(arm="a", rival="b")  # the table of arms has a less b
        row = report.claim_rows(types.SimpleNamespace(findings=[claim], study=types.SimpleNamespace(arms=[])))[0]
        self.assertEqual(row[2], "b - a: 0.1000 (-0.1086 to 0.3086) nats")
        self.assertEqual(claims.label({"kind": "accuracy", "arm": "a", "rival": "b"}), "a - b, accuracy")
        self.assertEqual(row[4], "inconclusive")
        self.assertEqual(report.markdown(["a", "b"], [["x|y", "1"]]), "| a | b |\n| --- | --: |\n| x\\|y | 1 |\n")
        self.assertEqual(
            report.answer(claim),
            "Inconclusive: the loss of b is 0.1000 nats per token higher than that of a (95 % CI -0.1086 to 0.3086).")
        claim.estimate, claim.verdict = Estimate(-0.1, 0.01, 20, 8), "refuted"  # a negative difference changes sign and ends
        self.assertEqual(report.answer(claim), "Refuted: the loss of b is 0.1000 nats per token lower than that of a "
                                               "(95 % CI 0.0791 to 0.1209).")  # fmt: skip
        claim.estimate, claim.verdict = None, "not measured"
        self.assertEqual(report.answer(claim), 'No result for the claim "t" (not measured).')
        self.assertEqual(report.applicable(["a", "b", "c"], [["x", "-", "1"], ["y", "", "-"]]),
                         (["a", "c"], [["x", "1"], ["y", "-"]]))  # fmt: skip
        self.assertEqual([jobs.duration(s) for s in (59, 125, 3660)], ["0:59 min", "2:05 min", "1:01 h"])


class Noise(unittest.TestCase):
    def test_resolution_by_seeds(self):
        message = noise.describe(np.array([[4.0, 4.1, 4.2, 4.3], [4.01, 4.09, 4.21, 4.29]]))
        spread = math.sqrt(0.05 / 3)
        self.assertIn(f"standard deviation over seeds {spread:.4f} (95 % CI 0.0731 to 0.4814)", message)
        self.assertIn("with other rounding differs by 0.0100 ", message)
        self.assertIn(f"differ by up to {1.959964 * math.sqrt(2) * spread:.4f} (8.62%) by chance", message)
        row = next(line.split() for line in message.splitlines() if line.strip().startswith("8 "))
        self.assertEqual(row[1:], [f"{detect:.4f}" for detect in (statistics.detectable(math.sqrt(2) * spread, 8, 14),
                                                                  statistics.detectable(0.01, 8, 7))])  # fmt: skip
        with self.assertRaisesRegex(StudyError, "some runs are missing"):
            noise.describe(np.array([[4.0, 4.1], [4.0, np.nan]]))
        with self.assertRaisesRegex(StudyError, "--seeds 1: noise is measured between at least two seeds"):
            noise.scale("pico", pathlib.Path(), 1, None)


class Findings(unittest.TestCase):
    def test_measure_of_each_claim_kind(self):
        """By hand: three arms, two budgets, two seeds."""
        tables = {
            (10, "causal"): [[5.0, 5.2], [5.5, 5.7], [6.0, 6.0]], (20, "causal"): [[4.0, 4.2], [4.5, 4.6], [5.1, 5.3]],
            (10, "own"): [[4.9, 5.1], [5.5, 5.7], [6.0, 6.0]], (20, "own"): [[3.7, 3.9], [4.5, 4.6], [5.1, 5.3]],
        }  # fmt: skip
        final = {"causal": {"loss": 4.0, "histogram": [0.1, 0.2, 0.3, 0.4], "over_capacity": 0.75},
                 "own": {"loss": 3.7, "fullest": 1.5}}  # fmt: skip
        pair = {"arm": "a", "rival": "b"}
        wanted = [
            ({"kind": "loss", **pair}, 0.45), ({"kind": "loss", **pair, "than_arm": "b", "than_rival": "c"}, -0.2),
            ({"kind": "accuracy", **pair}, 10), ({"kind": "probe", **pair}, -3), ({"kind": "step_time", **pair}, math.log(2)),
            ({"kind": "gap", "arm": "a"}, 0.3), ({"kind": "gap_growth", "arm": "a"}, 0.2),
            ({"kind": "share", "arm": "a", "from": 1, "to": 2}, 0.5), ({"kind": "over_capacity", "arm": "a"}, 0.5),
            ({"kind": "share", "arm": "a", "to": 1}, 0.3), ({"kind": "seconds", **pair}, 1.45 * math.log(2)),
        ]  # fmt: skip
        study = types.SimpleNamespace(
            arms=[types.SimpleNamespace(name=name) for name in "abc"], steps=[10, 20], seeds=2, lacking=lambda arm: {}, scale={"chaos": 3.0},
            recipe={"claims": [claim for claim, _ in wanted]}, finals=lambda arm: [{"final": final}] * 2,
            table=lambda steps, what="causal": np.array(tables[steps, what]),
        )  # fmt: skip
        tuned = {"accuracy": np.array([[60, 62], [50, 52], [40, 42]]), "probe": np.array([[50, 51], [53, 54], [50, 50]])}
        made = claims.Claims(study, {"a": [1.0, 2.0], "b": [2.0, 4.0, 9.0]}, tuned).findings
        for (claim, mean), finding in zip(wanted, made):
            self.assertAlmostEqual(finding.estimate.mean, mean, msg=claim)
        self.assertAlmostEqual(made[0].estimate.error, 3 / math.sqrt(2))
        self.assertEqual([f.corrected for f in made], statistics.holm([f.p for f in made]))
        self.assertAlmostEqual(made[0].plain_p, Estimate(0.45, 0.05, 1, 2).p())  # of 0.5 and 0.4 alone
        self.assertGreater(made[0].p, made[0].plain_p)


class Verdicts(unittest.TestCase):
    def verdict(self, mean, error, among=0, **claim):
        """`among`: claims beside it whose p is smaller."""
        f = claims.Finding({"kind": "loss", **claim}, Estimate(mean, error, 20, 8))
        f.p = f.estimate.p_side(*f.range)
        others = [claims.Finding({"kind": "loss"}, Estimate(1.0, 1e-9, 20, 8), 0.0) for _ in range(among)]
        more = [claims.Finding({"kind": "loss"}, Estimate(0.0, 1.0, 20, 8), 1.0) for _ in range(among)]
        claims.correct([f, *others, *more])
        return f.verdict

    def test_one_rule(self):
        self.assertEqual(self.verdict(1, 0.1), "confirmed")
        self.assertEqual(self.verdict(-1, 0.1), "refuted")
        self.assertEqual(self.verdict(0.1, 0.1), "inconclusive")
        self.assertEqual([self.verdict(0.3, 0.1, among) for among in (0, 20)], ["confirmed", "inconclusive"])
        self.assertEqual([self.verdict(-0.3, 0.1, among) for among in (0, 20)], ["refuted", "inconclusive"])  # a no as a yes
        self.assertEqual(self.verdict(1, 0.1, figure=2), "refuted")
        self.assertEqual(self.verdict(1, 0.1, figure=1.1), "inconclusive")
        self.assertEqual(self.verdict(3, 0.1, figure=2), "confirmed")  # more than the paper has
        self.assertEqual(self.verdict(0.4, 0.01, kind="share", null=0.5), "refuted")
        one = claims.Finding({"kind": "loss"}, Estimate(1, 1, 0, 1))
        claims.correct([one])
        self.assertEqual(one.verdict, "one seed")

    def test_ranges(self):
        self.assertEqual(self.verdict(0, 0.01, margin=0.1), "confirmed")
        self.assertEqual(self.verdict(0.09, 0.01, margin=0.1), "inconclusive")
        self.assertEqual(self.verdict(0.3, 0.01, margin=0.1), "refuted")
        self.assertEqual(self.verdict(0.3, 0.01, about=[0.2, 0.4]), "confirmed")
        self.assertEqual(self.verdict(0.5, 0.01, about=[0.2, 0.4]), "refuted")

    def test_times_are_logarithms(self):
        self.assertEqual(self.verdict(math.log(1.5), 0.01, kind="steps", figure=2), "refuted")
        self.assertEqual(self.verdict(math.log(0.5), 0.01, kind="steps"), "refuted")
        self.assertEqual(self.verdict(math.log(1.3), 0.01, kind="step_time", about=[1.2, 1.4]), "confirmed")
        self.assertEqual(self.verdict(math.log(1.3), 0.01, kind="step_time", margin=0.2), "refuted")
        self.assertEqual(self.verdict(-math.log(1.15), 0.01, kind="step_time", margin=0.2), "confirmed")

    def test_names_of_rows(self):
        self.assertEqual(claims.label({"kind": "loss", "arm": "a", "rival": "b"}), "b - a")
        self.assertEqual(claims.label({"kind": "steps", "arm": "a", "rival": "b"}), "b / a, steps to one loss")
        text = {"kind": "text", "arm": "a", "rival": "a", "routing": "topk", "texts": ["x"]}
        self.assertEqual(claims.label(text), "a - a, topk on x")

    def test_seeds_without_crossing_are_counted(self):
        """A mean of the others would say that the arm is nearer to its rival than it is."""
        near, far = [5.1, 4.9, 4.7], [5.6, 5.4, 5.2]
        tables = [np.array([[near[i], near[i], last[i]], [5.0, 4.8, 4.6][i] * np.ones(3)]) for last in (near, far)
                  for i in range(3)]  # fmt: skip
        found = []
        for begin, chaos in ((0, 0), (3, 0), (0, 0.2)):
            study = types.SimpleNamespace(
                arms=[types.SimpleNamespace(name=name) for name in ("arm", "rival")], steps=[1000, 2000, 4000], seeds=3, lacking=lambda arm: {},
                scale={"chaos": chaos},
                recipe={"claims": [{"kind": "steps", "arm": "arm", "rival": "rival"}]},
                table=lambda steps: tables[begin + [1000, 2000, 4000].index(steps)],
            )  # fmt: skip
            found.append(claims.Claims(study).findings[0])
        self.assertEqual(found[0].estimate.count, 3)
        self.assertEqual((found[1].estimate, found[1].verdict), (None, "not measured"))
        self.assertAlmostEqual(found[2].estimate.error, math.log(2) / math.sqrt(3))  # a doubling is worth 0.2 nats
        self.assertLess(found[0].estimate.error, 0.01)

    def test_devices_wait_for_the_fullest(self):
        """Time is steps times the fullest device's load: what the rival's is beside the arm's counts, seed by seed."""
        curves = np.array([[5.1, 4.9, 4.7], [5.0, 4.8, 4.6]])
        study = types.SimpleNamespace(
            arms=[types.SimpleNamespace(name=name) for name in ("arm", "rival")], steps=[1000, 2000, 4000], seeds=2,
            lacking=lambda arm: {}, scale={}, table=lambda steps: np.tile(curves[:, [[1000, 2000, 4000].index(steps)]], 2),
            final=lambda arm, seed: {"fullest": [1, 1.25, 2] if arm == "arm" else [1, 2, 4 * seed]},
            recipe={"claims": [{"kind": kind, "arm": "arm", "rival": "rival", **more} for kind, more in
                               [("steps", {}), *(("waiting", {"devices": d}) for d in (8, 16, 32))]]},
        )  # fmt: skip
        steps, *waiting = (f.estimate.mean for f in claims.Claims(study).findings)
        self.assertAlmostEqual(steps, -0.5 * math.log(2))
        np.testing.assert_allclose(np.subtract(waiting, steps), np.log([1, 1.6, 8**0.5]))

    def test_leads_grow_with_tokens_and_with_width(self):
        """A lead of 0.02 nats a doubling of tokens and of -0.01 a doubling of FLOPs per token, over two widths and three
        budgets, with a seed that lacks a run. One slope through both would be between them."""
        flops = {"arm": 1e6, "rival": 1.1e6, "arm, wide": 4e6, "rival, wide": 4.1e6}

        def final(name, seed, steps):
            lead = 0.02 * math.log2(steps) - 0.01 * math.log2(flops[name]) if "arm" in name else 0
            missing = seed == 3 and name == "arm, wide" and steps == 2000
            return None if missing else {"train_flops_per_token": flops[name], "final": {"causal": {"loss": 5 + seed - lead}}}

        pair = {"kind": "growth", "arm": "arm", "rival": "rival", "wider": [["arm, wide", "rival, wide"]]}
        study = types.SimpleNamespace(
            arms=[types.SimpleNamespace(name=name) for name in flops], steps=[1000, 2000, 4000], seeds=3, final=final,
            lacking=lambda arm: {}, scale={"chaos": 0.1},
            recipe={"claims": [{**pair, "over": over} for over in ("tokens", "width")]},
        )  # fmt: skip
        found = claims.Claims(study).findings
        tokens, width = (f.estimate for f in found)
        self.assertAlmostEqual(tokens.mean, 0.02)
        self.assertAlmostEqual(width.mean, -0.01)
        self.assertEqual(tokens.count, 2)
        self.assertAlmostEqual(tokens.error, 0.1 / math.sqrt(4) / math.sqrt(2))  # doublings -1, 0, 1, twice
        self.assertAlmostEqual(width.error, 0.1 / math.sqrt(6) / math.sqrt(2))  # doublings -1 and 1, three times each
        self.assertLess(found[0].plain_p, found[0].p)  # no floor
        self.assertEqual([claims.label(f.claim) for f in found], ["rival - arm per doubling of tokens",
                                                                  "rival - arm per doubling of FLOPs through width"])  # fmt: skip


class Figures(unittest.TestCase):
    def test_settings_of_the_user_have_no_effect(self):
        """A notebook's backend that is not installed here, and a matplotlibrc that asks for LaTeX."""
        draw = ("from choir.study import figures; import os; print(os.environ['MPLBACKEND']); "
                "print(figures._plot([1.0, 2.0], {'a': [None, None]}, False, 'over', 'what').count('<svg'))")  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "matplotlibrc").write_text("text.usetex: True\nfigure.figsize: 1, 1\n")
            output = subprocess.run(
                [sys.executable, "-c", draw], cwd=folder, env={**os.environ, "MPLBACKEND": "module://no_backend"},
                capture_output=True, text=True,
            )  # fmt: skip
        self.assertEqual(output.stdout.split(), ["module://no_backend", "1"], output.stderr)


if __name__ == "__main__":
    unittest.main()
