"""What other frameworks call a setting, and what it is called here."""

from __future__ import annotations

import difflib

ALIKE = 0.88  # how near a misspelt name must be to one that is known
NONE = "none is needed"
STEPS = "stitch.steps, pretrain.tokens, nli.epochs or sae.tokens, by task"
BATCH = "stitch.tokens_per_step, pretrain.tokens_per_step, nli.pairs_per_step or sae.tokens_per_step, by task"
RATE = "stitch.lr, pretrain.lr, nli.lr or sae.lr, by task"
STORE = "store=DIR"
MODEL = "model=NAME or model=ORG/NAME, and for a folder model=local model.path=DIR"
TEXT = "data=NAME, or data=text 'data.files=[corpus/*.txt]'"
MANY = "threads=N for one job, and hydra/launcher=joblib hydra.launcher.n_jobs=N for the jobs of a sweep"
RESUMES = "none is needed: a job that was interrupted goes on when its command is called again"

TRAINING = {  # of train.py
    "max_steps num_steps n_steps total_steps train_steps iterations max_iters iters limit_train_batches": STEPS,
    "max_epochs num_epochs n_epochs num_train_epochs epochs": STEPS,
    "lr learning_rate max_lr peak_lr base_lr": RATE,
    "batch_size train_batch_size per_device_train_batch_size micro_batch_size bs global_batch_size": BATCH,
    "accumulate_grad_batches gradient_accumulation_steps grad_accum": f"{BATCH}; what does not fit runs in parts",
    "gradient_clip_val grad_clip max_grad_norm clip_grad_norm clip_norm": "stitch.clip, pretrain.clip or nli.clip",
    "warmup_steps num_warmup_steps warmup_ratio lr_warmup_steps": "stitch.warmup, pretrain.warmup or nli.warmup",
    "scheduler lr_scheduler lr_scheduler_type lr_schedule": "stitch.schedule=linear|cosine|tuned_lens",
    "optimizer optim optimiser": "stitch.optimizer=sgd|adam, and stitch.lr",
    "wd l2": "stitch.weight_decay, pretrain.weight_decay or nli.weight_decay",
    "criterion loss_fn objective": "stitch.loss=kl|cross_entropy|mse|penultimate|alignment",
    "save_every save_steps ckpt_every every_n_train_steps": "trainer.checkpoint_every",
    "log_every_n_steps logging_steps log_interval": "trainer.log_every",
    "mixed_precision amp fp16 bf16": "trainer.precision=bf16-mixed, or model.dtype=bfloat16",
    "layer source_layer target_layer site sites hook hook_point": "layers=same|all|[[0,0],[1,2]]",
    "alpha regularization": "stitch.ridge",
}
MEASURING = {  # of analyze.py
    "metric metrics measures similarity method analysis": "measure=NAME",
    "layer source_layer target_layer": "layers=same|all|[[0,0],[1,2]] of measures that take pairs; the others take all",
    "figure fig table paper exp": "experiment=PAPER/FIGURE",
    "batch_size n_batches num_batches": "measure.batches and measure.tokens_per_batch",
    "n_permutations num_permutations n_perm": "measure.permutations",
    "bootstrap n_bootstrap n_boot": "measure.resamples",
    "words stimulus_file": "stimuli=table stimuli.path=FILE",
    "recordings brains features states": "activations=FILE",
}
BOTH = {
    "accelerator gpu cuda": "model.device=cpu|cuda|cuda:0, and target.device",
    "gpus num_gpus n_gpus num_devices world_size nproc_per_node num_processes": "trainer=ddp trainer.devices=N",
    "torch_dtype": "model.dtype",
    "output_dir out_dir output out save_dir log_dir logdir results results_dir default_root_dir root_dir": STORE,
    "work_dir paths dir save_path out_path outdir checkpoint_dir": STORE,
    "overwrite overwrite_output_dir redo": "force=true",
    "resume resume_from_checkpoint ckpt_path load_from restart": RESUMES,
    "seed_everything random_seed rng random_state": "seed",
    "num_workers workers n_jobs num_threads n_threads nthreads cpus ncpus": MANY,
    "wandb_entity entity team": "logger.entity",
    "wandb use_wandb report_to loggers tensorboard csv": "logger=wandb|tensorboard|csv|none",
    "wandb_project project_name project": "logger.project",
    "model_name model_id model_name_or_path name_or_path pretrained hf_model repo_id source source_model": MODEL,
    "model1 model_1 model_a arch architecture_name": MODEL,
    "target_model model2 model_2 model_b second_model other": "model@target=NAME",
    "dataset dataset_name corpus text train_file data_path data_dir": TEXT,
    "tokenizer tokenizer_name": "none is needed: a model brings its tokenizer",
    "max_length seq_len seq_length block_size max_seq_length max_seq_len context_length ctx": "model.context",
    "n_samples num_samples max_samples limit_val_batches n_tokens num_tokens": "data.report_tokens",
    "debug fast_dev_run dryrun sanity": "dry_run=true, which says what a job would take",
    "mini small tiny size": "scale=mini",
    "run_name exp_name experiment_name name tag tags": "none is needed: a result is found by its key and settings",
    "verbose quiet log_level progress progress_bar enable_progress_bar": "the variable THINKALIKE_PROGRESS (seconds)",
}


def called_here(key: str, door: str, alike: float = ALIKE) -> str | None:
    """Return what a setting that does not exist is called here, in a clause, or None if nothing is known of it.

    Args:
        key: as a command line has it, such as trainer.max_steps.
        door: train or analyze.
        alike: how near a misspelt name must be, from 0 to 1.
    """
    tables = [(TRAINING if door == "train" else MEASURING, "here"), (BOTH, "here"), (TRAINING, "in train.py")]
    known = {
        name: (here, where)
        for table, where in reversed(tables)
        for names, here in table.items()
        for name in names.split()
    }
    *parts, last = key.lower().replace("-", "_").split(".")
    close = difflib.get_close_matches(last, known, n=1, cutoff=alike)
    for name in (*close, *(part for part in reversed(parts) if part in known)):
        here, where = known[name]
        return here if here.startswith(NONE) else f"{where} it is {here}"
    return None
