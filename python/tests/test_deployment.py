"""The examples for containers and clusters, which no test can run here: the Dockerfile's flags are Docker's, the
Kubernetes objects parse and name what is there, and the Slurm script gives srun what sbatch was asked for."""

import re
import shlex
import subprocess
import unittest
from pathlib import Path

try:
    import yaml
except ImportError:
    yaml = None

SOURCE = Path(__file__).resolve().parents[2]
# docs.docker.com/reference/dockerfile: the flags of each instruction.
FLAGS = {
    "FROM": {"platform"}, "COPY": {"from", "chown", "chmod", "link", "parents", "exclude"},
    "ADD": {"chown", "chmod", "link", "checksum", "keep-git-dir", "exclude"}, "RUN": {"mount", "network", "security"},
    "HEALTHCHECK": {"interval", "timeout", "start-period", "start-interval", "retries"},
}  # fmt: skip
OTHERS = {"ARG", "CMD", "ENTRYPOINT", "ENV", "EXPOSE", "LABEL", "ONBUILD", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}


def instructions(text):
    """(instruction, flags, words) of a Dockerfile, line ends joined."""
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, rest = line.partition(" ")
        words = rest.split()
        count = next((i for i, word in enumerate(words) if not word.startswith("--")), len(words))
        yield name, [word[2:].partition("=") for word in words[:count]], words[count:]


def faults(text):
    """What Docker would refuse."""
    stages, found = [], []
    for name, flags, words in instructions(text):
        if name not in FLAGS and name not in OTHERS:
            found.append(f"{name} is no instruction")
        for flag, _, value in flags:
            if flag not in FLAGS.get(name, ()):
                found.append(f"{name} has no flag --{flag}")
            elif flag == "from" and value not in stages:
                found.append(f"--from={value} is no stage: {stages}")
        if name == "FROM" and "AS" in words:
            stages.append(words[-1])
        if name == "COPY" and not flags:
            found += [f"{word} is not there" for word in words[:-1] if not (SOURCE / word).exists()]
    return found


class Docker(unittest.TestCase):
    def test_the_dockerfile_has_dockers_flags(self):
        text = (SOURCE / "Dockerfile").read_text(encoding="utf-8")
        self.assertEqual(faults(text), [])
        self.assertEqual(faults(text.replace("--from=build", "--init-from=build")), ["COPY has no flag --init-from"])
        self.assertIn("is no stage", faults(text.replace("--from=build", "--from=built"))[0])

    def test_targets_that_are_named_exist(self):
        stages = [words[-1] for name, _, words in instructions((SOURCE / "Dockerfile").read_text()) if "AS" in words]
        for path in (*SOURCE.glob("docs/*.md"), *SOURCE.glob("examples/kubernetes/*"), SOURCE / "Dockerfile"):
            for target in re.findall(r"docker build.*--target (\w+)", path.read_text(encoding="utf-8")):
                self.assertIn(target, stages, path)


@unittest.skipIf(yaml is None, "PyYAML is not installed")
class Kubernetes(unittest.TestCase):
    def test_the_job_names_existing_files(self):
        path = SOURCE / "examples/kubernetes/trainjob.yaml"
        objects = {one["kind"]: one for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))}
        runtime, job = objects["ClusterTrainingRuntime"], objects["TrainJob"]
        self.assertEqual(job["spec"]["runtimeRef"]["name"], runtime["metadata"]["name"])
        trainer = job["spec"]["trainer"]
        self.assertEqual(trainer["numNodes"], runtime["spec"]["mlPolicy"]["numNodes"])
        self.assertTrue((path.parent / Path(trainer["command"][1]).name).exists())
        for replicated in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
            pod = replicated["template"]["spec"]["template"]["spec"]
            volumes = {volume["name"] for volume in pod["volumes"]}
            for container in pod["containers"]:
                self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)


class Slurm(unittest.TestCase):
    def test_every_process_has_its_cpus(self):
        path = SOURCE / "examples/slurm/train.sbatch"
        text = path.read_text(encoding="utf-8")
        subprocess.run(["bash", "-n", path], check=True)
        asked = dict(re.findall(r"(?m)^#SBATCH --([a-z-]+)(?:=(\S+))?$", text))
        self.assertEqual(len(asked), text.count("#SBATCH"))
        known = "job-name nodes ntasks-per-node cpus-per-task time signal requeue open-mode output".split()
        self.assertLessEqual(set(asked), set(known))
        # Since Slurm 22.05 srun takes no --cpus-per-task from sbatch.
        commands = text[: text.index("\nsrun ")].splitlines()
        words = [word for line in commands for word in shlex.split(line, comments=True)]
        self.assertIn("SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", words)

    def test_scripts_parse(self):
        for path in SOURCE.glob("examples/*/*.sh"):
            subprocess.run(["sh", "-n", path], check=True)


if __name__ == "__main__":
    unittest.main()
