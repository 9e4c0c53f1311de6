//! What people may make the device do from outside.
use super::NeuronFunction;
use crate::observe::event::Observers;
use crate::policy::fault::{Order, inline, risk};
use crate::policy::{Faults, Ground, Notify, Operate, Posted};

impl Operate for NeuronFunction {
    fn notify(&mut self, notify: &Notify) -> Result<Posted, String> {
        // Who asks is told what was refused: nothing of the device's was lost.
        self.try_post(notify.block, notify.index, notify.queue, &notify.bytes)
            .map_err(|error| error.to_string())
    }

    fn observers_mut(&mut self) -> &mut Observers {
        &mut self.observers
    }

    fn fault(&mut self, order: &Order) -> Result<String, String> {
        match order {
            Order::Add { text, allow_hangs } => {
                let rules = inline(text)?;
                let (generation, platform) = (self.generation, self.config.platform);
                let Ground { seed, clock } = self.policies.ground();
                for rule in &rules {
                    risk::admit(rule, generation, platform, clock, *allow_hangs)?;
                }
                let faults = self.policies.faults_or(|| Faults::new(generation, seed));
                for rule in rules {
                    faults.add(rule)?;
                }
            }
            Order::Clear => {
                self.policies.set_faults(None);
                // What is stalled or aborted stays so until the guest resets it.
                self.policies.restore();
            }
            Order::List => {}
        }
        let rules = self.policies.faults().map(Faults::describe);
        Ok(rules.unwrap_or_else(|| "  nothing goes wrong on purpose\n".to_owned()))
    }
}
