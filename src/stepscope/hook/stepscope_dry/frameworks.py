"""What training frameworks do beside training: they load no weights, keep no checkpoint, ask no hub, and do not evaluate."""

import sys

from stepscope_dry.guards import Absorbing
from stepscope_dry.imports import replaced, when_imported

LEFT_OUT = {
    "transformers.trainer": {
        "Trainer._maybe_log_save_evaluate": None, "Trainer._save_checkpoint": None, "Trainer.save_model": None,
        "Trainer.evaluate": dict, "get_reporting_integration_callbacks": list,
    },
    "transformers.modeling_utils": {"PreTrainedModel.save_pretrained": None, "PreTrainedModel.push_to_hub": None},
    "transformers.tokenization_utils_base": {"PreTrainedTokenizerBase.save_pretrained": tuple},
    "accelerate.accelerator": {
        "Accelerator.init_trackers": None, "Accelerator.log": None, "Accelerator.save": None, "Accelerator.save_model": None,
        "Accelerator.save_state": str,
    },
    "accelerate.data_loader": {"synchronize_rng_states": None},
    "pytorch.trainer.trainer": {"Trainer._run_sanity_check": None, "Trainer.save_checkpoint": None},
    "pytorch.loops.evaluation_loop": {"_EvaluationLoop.run": list},
    "fabric.fabric": {"Fabric.save": None},
    "timm.models._builder": {"load_pretrained": None},
    "evaluate": {"load": Absorbing},
}  # fmt: skip
"""Module -> its functions that do nothing here, and are noted -> what they return. Lightning's have two names each."""


def begin(session):
    frameworks = Frameworks(session)
    for name, functions in LEFT_OUT.items():
        lightning = name.startswith(("pytorch.", "fabric."))
        for module in (
            ("lightning." + name, "lightning_" + name if name[0] == "f" else name.replace(".", "_lightning.", 1))
            if lightning
            else (name,)
        ):
            when_imported(module, lambda owner, functions=functions: frameworks.leave_out(owner, functions))
    when_imported("transformers.modeling_utils", frameworks.no_weights)
    when_imported("torch.hub", frameworks.no_state)


class NoWeights(dict):
    """The state of a model that was not fetched."""


class Frameworks:
    def __init__(self, session):
        self.session = session

    def leave_out(self, module, functions):
        for path, answer in functions.items():
            *owners, name = path.split(".")
            owner = module
            for part in owners:
                owner = getattr(owner, part, None)
            if owner is not None:
                replaced(owner, name, lambda plain, path=path, answer=answer: self.nothing(path, answer))

    def nothing(self, path, answer):
        def skip(*args, **kwargs):
            self.session.note("skipped", "{} is left out".format(path), self.session.place())
            return answer and answer()

        return skip

    def no_weights(self, module):
        """A model of transformers is made from its configuration: its weights would have no data."""
        session = self.session

        def from_pretrained(cls, name, *args, config=None, **kwargs):
            quiet = kwargs.pop("output_loading_info", False)
            dtype = kwargs.pop("dtype", kwargs.pop("torch_dtype", None))
            options = (
                {"attn_implementation": kwargs.pop("attn_implementation")} if kwargs.get("attn_implementation") else {}
            )
            if not isinstance(
                config, module.PreTrainedConfig if hasattr(module, "PreTrainedConfig") else module.PretrainedConfig
            ):
                config, kwargs = cls.config_class.from_pretrained(config or name, return_unused_kwargs=True, **kwargs)
            if dtype is None and sys.modules["transformers"].__version__ < "5":
                dtype = sys.modules["torch"].float32  # later ones take what the configuration names
            if dtype is not None:
                options["dtype" if hasattr(config, "dtype") else "torch_dtype"] = (
                    config.dtype if dtype == "auto" else dtype
                )
            for what in ("tp_plan", "tp_size", "distributed_config", "quantization_config"):
                if (kwargs.get(what) or getattr(config, what, None)) not in (None, 1):
                    session.fail(
                        "unsupported",
                        "{} changes the weights as they are read, and a dry run reads none".format(what),
                        session.place(),
                        fix="leave it out, or share the model by torch.distributed.tensor.parallel",
                    )
            session.note("skipped", "the weights of {} are not read".format(name), session.place())
            model = cls._from_config(config, **options).eval()
            device = kwargs.get("device_map")
            device = device.get("") if isinstance(device, dict) else device
            if device is not None:
                model.to(
                    "cuda" if isinstance(device, str) and device.startswith(("auto", "balanced", "seq")) else device
                )
            return (model, {}) if quiet else model

        module.PreTrainedModel.from_pretrained = classmethod(from_pretrained)

    def no_state(self, module):
        """Weights that would be fetched are not; what loads them keeps what it has."""
        import torch

        def fetch(plain):
            def load_state_dict_from_url(url, *args, **kwargs):
                self.session.note("skipped", "{} is not fetched".format(url), self.session.place())
                return NoWeights()

            return load_state_dict_from_url

        def load(plain):
            def load_state_dict(module, state_dict, *args, **kwargs):
                if isinstance(state_dict, NoWeights):
                    return torch.nn.modules.module._IncompatibleKeys([], [])
                return plain(module, state_dict, *args, **kwargs)

            return load_state_dict

        replaced(module, "load_state_dict_from_url", fetch)
        replaced(torch.nn.Module, "load_state_dict", load)
